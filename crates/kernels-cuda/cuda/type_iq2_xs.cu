// The products of IQ2_XS.
#include "products.cuh"

F32_PRODUCTS(IQ2_XS, iq2_xs)
HALF_PRODUCTS(IQ2_XS, iq2_xs)
INT8_PRODUCTS(IQ2_XS, iq2_xs)
