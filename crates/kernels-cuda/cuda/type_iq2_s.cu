// The products of IQ2_S.
#include "products.cuh"

F32_PRODUCTS(IQ2_S, iq2_s)
HALF_PRODUCTS(IQ2_S, iq2_s)
INT8_PRODUCTS(IQ2_S, iq2_s)
LEVELS_PRODUCTS(IQ2_S, iq2_s)
