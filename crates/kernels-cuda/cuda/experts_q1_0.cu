// The products of Q1_0 with experts.
#include "experts.cuh"

F32_EXPERTS(Q1_0, q1_0)
HALF_EXPERTS(Q1_0, q1_0)
INT8_EXPERTS(Q1_0, q1_0)
