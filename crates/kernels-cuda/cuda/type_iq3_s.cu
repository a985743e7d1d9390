// The products of IQ3_S.
#include "products.cuh"

F32_PRODUCTS(IQ3_S, iq3_s)
HALF_PRODUCTS(IQ3_S, iq3_s)
INT8_PRODUCTS(IQ3_S, iq3_s)
LEVELS_PRODUCTS(IQ3_S, iq3_s)
INT8_DECODE_TILES(IQ3_S, iq3_s)
