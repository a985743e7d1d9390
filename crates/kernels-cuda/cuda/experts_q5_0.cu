// The products of Q5_0 with experts.
#include "experts.cuh"

F32_EXPERTS(Q5_0, q5_0)
HALF_EXPERTS(Q5_0, q5_0)
INT8_EXPERTS(Q5_0, q5_0)
