// The products of IQ1_S.
#include "products.cuh"

F32_PRODUCTS(IQ1_S, iq1_s)
HALF_PRODUCTS(IQ1_S, iq1_s)
INT8_PRODUCTS(IQ1_S, iq1_s)
LEVELS_PRODUCTS(IQ1_S, iq1_s)
