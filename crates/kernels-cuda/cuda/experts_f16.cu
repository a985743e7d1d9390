// The products of F16 with experts.
#include "experts.cuh"

F32_EXPERTS(F16, f16)
HALF_EXPERTS(F16, f16)
