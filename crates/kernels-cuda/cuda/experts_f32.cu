// The products of F32 with experts.
#include "experts.cuh"

F32_EXPERTS(F32, f32)
