// The products of Q6_K with experts.
#include "experts.cuh"

F32_EXPERTS(Q6_K, q6_k)
HALF_EXPERTS(Q6_K, q6_k)
INT8_EXPERTS(Q6_K, q6_k)
