// The products of Q4_0 with experts.
#include "experts.cuh"

F32_EXPERTS(Q4_0, q4_0)
HALF_EXPERTS(Q4_0, q4_0)
INT8_EXPERTS(Q4_0, q4_0)
