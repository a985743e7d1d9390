// The products of IQ2_XXS.
#include "products.cuh"

F32_PRODUCTS(IQ2_XXS, iq2_xxs)
HALF_PRODUCTS(IQ2_XXS, iq2_xxs)
INT8_PRODUCTS(IQ2_XXS, iq2_xxs)
