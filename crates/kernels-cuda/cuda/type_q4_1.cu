// The products of Q4_1.
#include "products.cuh"

F32_PRODUCTS(Q4_1, q4_1)
HALF_PRODUCTS(Q4_1, q4_1)
INT8_PRODUCTS(Q4_1, q4_1)
INT8_DECODE_TILES(Q4_1, q4_1)
