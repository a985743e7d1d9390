// The products of Q5_0.
#include "products.cuh"

F32_PRODUCTS(Q5_0, q5_0)
HALF_PRODUCTS(Q5_0, q5_0)
INT8_PRODUCTS(Q5_0, q5_0)
INT8_DECODE_TILES(Q5_0, q5_0)
