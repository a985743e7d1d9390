// The products of Q5_1.
#include "products.cuh"

F32_PRODUCTS(Q5_1, q5_1)
HALF_PRODUCTS(Q5_1, q5_1)
INT8_PRODUCTS(Q5_1, q5_1)
INT8_DECODE_TILES(Q5_1, q5_1)
