// The products of IQ3_XXS.
#include "products.cuh"

F32_PRODUCTS(IQ3_XXS, iq3_xxs)
HALF_PRODUCTS(IQ3_XXS, iq3_xxs)
INT8_PRODUCTS(IQ3_XXS, iq3_xxs)
LEVELS_PRODUCTS(IQ3_XXS, iq3_xxs)
INT8_DECODE_TILES(IQ3_XXS, iq3_xxs)
