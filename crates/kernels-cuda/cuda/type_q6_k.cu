// The products of Q6_K.
#include "products.cuh"

F32_PRODUCTS(Q6_K, q6_k)
HALF_PRODUCTS(Q6_K, q6_k)
INT8_PRODUCTS(Q6_K, q6_k)
LEVELS_PRODUCTS(Q6_K, q6_k)
INT8_DECODE_TILES(Q6_K, q6_k)
