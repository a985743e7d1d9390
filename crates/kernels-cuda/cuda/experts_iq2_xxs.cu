// The products of IQ2_XXS with experts.
#include "experts.cuh"

F32_EXPERTS(IQ2_XXS, iq2_xxs)
HALF_EXPERTS(IQ2_XXS, iq2_xxs)
INT8_EXPERTS(IQ2_XXS, iq2_xxs)
