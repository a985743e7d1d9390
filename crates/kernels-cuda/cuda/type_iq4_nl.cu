// The products of IQ4_NL.
#include "products.cuh"

F32_PRODUCTS(IQ4_NL, iq4_nl)
HALF_PRODUCTS(IQ4_NL, iq4_nl)
INT8_PRODUCTS(IQ4_NL, iq4_nl)
LEVELS_PRODUCTS(IQ4_NL, iq4_nl)
INT8_DECODE_TILES(IQ4_NL, iq4_nl)
