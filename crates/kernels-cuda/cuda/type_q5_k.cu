// The products of Q5_K.
#include "products.cuh"

F32_PRODUCTS(Q5_K, q5_k)
HALF_PRODUCTS(Q5_K, q5_k)
INT8_PRODUCTS(Q5_K, q5_k)
LEVELS_PRODUCTS(Q5_K, q5_k)
INT8_DECODE_TILES(Q5_K, q5_k)
