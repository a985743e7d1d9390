// The products of Q4_K with experts.
#include "experts.cuh"

F32_EXPERTS(Q4_K, q4_k)
HALF_EXPERTS(Q4_K, q4_k)
INT8_EXPERTS(Q4_K, q4_k)
