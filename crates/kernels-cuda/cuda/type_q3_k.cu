// The products of Q3_K.
#include "products.cuh"

F32_PRODUCTS(Q3_K, q3_k)
HALF_PRODUCTS(Q3_K, q3_k)
INT8_PRODUCTS(Q3_K, q3_k)
LEVELS_PRODUCTS(Q3_K, q3_k)
