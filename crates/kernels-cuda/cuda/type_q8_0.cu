// The products of Q8_0.
#include "products.cuh"

F32_PRODUCTS(Q8_0, q8_0)
HALF_PRODUCTS(Q8_0, q8_0)
INT8_PRODUCTS(Q8_0, q8_0)
INT8_DECODE_TILES(Q8_0, q8_0)
