// The products of Q1_0.
#include "products.cuh"

F32_PRODUCTS(Q1_0, q1_0)
HALF_PRODUCTS(Q1_0, q1_0)
INT8_PRODUCTS(Q1_0, q1_0)
LEVELS_PRODUCTS(Q1_0, q1_0)
