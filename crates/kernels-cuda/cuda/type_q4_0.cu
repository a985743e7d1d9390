// The products of Q4_0.
#include "products.cuh"

F32_PRODUCTS(Q4_0, q4_0)
HALF_PRODUCTS(Q4_0, q4_0)
INT8_PRODUCTS(Q4_0, q4_0)
INT8_DECODE_TILES(Q4_0, q4_0)
