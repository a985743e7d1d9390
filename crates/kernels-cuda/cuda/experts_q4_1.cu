// The products of Q4_1 with experts.
#include "experts.cuh"

F32_EXPERTS(Q4_1, q4_1)
HALF_EXPERTS(Q4_1, q4_1)
INT8_EXPERTS(Q4_1, q4_1)
