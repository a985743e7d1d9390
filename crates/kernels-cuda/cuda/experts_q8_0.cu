// The products of Q8_0 with experts.
#include "experts.cuh"

F32_EXPERTS(Q8_0, q8_0)
HALF_EXPERTS(Q8_0, q8_0)
INT8_EXPERTS(Q8_0, q8_0)
