// The products of IQ3_XXS with experts.
#include "experts.cuh"

F32_EXPERTS(IQ3_XXS, iq3_xxs)
HALF_EXPERTS(IQ3_XXS, iq3_xxs)
INT8_EXPERTS(IQ3_XXS, iq3_xxs)
