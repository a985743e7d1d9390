// The products of F8_0 with experts.
#include "experts.cuh"

F32_EXPERTS(F8_0, f8_0)
HALF_EXPERTS(F8_0, f8_0)
