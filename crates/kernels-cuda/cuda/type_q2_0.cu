// The products of Q2_0.
#include "products.cuh"

F32_PRODUCTS(Q2_0, q2_0)
HALF_PRODUCTS(Q2_0, q2_0)
INT8_PRODUCTS(Q2_0, q2_0)
LEVELS_PRODUCTS(Q2_0, q2_0)
