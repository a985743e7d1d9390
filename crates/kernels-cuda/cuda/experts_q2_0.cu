// The products of Q2_0 with experts.
#include "experts.cuh"

F32_EXPERTS(Q2_0, q2_0)
HALF_EXPERTS(Q2_0, q2_0)
INT8_EXPERTS(Q2_0, q2_0)
