// The products of Q4_K.
#include "products.cuh"

F32_PRODUCTS(Q4_K, q4_k)
HALF_PRODUCTS(Q4_K, q4_k)
INT8_PRODUCTS(Q4_K, q4_k)
LEVELS_PRODUCTS(Q4_K, q4_k)
INT8_DECODE_TILES(Q4_K, q4_k)
