// The products of Q2_K with experts.
#include "experts.cuh"

F32_EXPERTS(Q2_K, q2_k)
HALF_EXPERTS(Q2_K, q2_k)
INT8_EXPERTS(Q2_K, q2_k)
