// The products of Q5_1 with experts.
#include "experts.cuh"

F32_EXPERTS(Q5_1, q5_1)
HALF_EXPERTS(Q5_1, q5_1)
INT8_EXPERTS(Q5_1, q5_1)
