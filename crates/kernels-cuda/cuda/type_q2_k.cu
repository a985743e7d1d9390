// The products of Q2_K.
#include "products.cuh"

F32_PRODUCTS(Q2_K, q2_k)
HALF_PRODUCTS(Q2_K, q2_k)
INT8_PRODUCTS(Q2_K, q2_k)
LEVELS_PRODUCTS(Q2_K, q2_k)
