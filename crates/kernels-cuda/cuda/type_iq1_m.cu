// The products of IQ1_M.
#include "products.cuh"

F32_PRODUCTS(IQ1_M, iq1_m)
HALF_PRODUCTS(IQ1_M, iq1_m)
INT8_PRODUCTS(IQ1_M, iq1_m)
