// The products of IQ4_XS.
#include "products.cuh"

F32_PRODUCTS(IQ4_XS, iq4_xs)
HALF_PRODUCTS(IQ4_XS, iq4_xs)
INT8_PRODUCTS(IQ4_XS, iq4_xs)
LEVELS_PRODUCTS(IQ4_XS, iq4_xs)
INT8_DECODE_TILES(IQ4_XS, iq4_xs)
