// The products of Q5_K with experts.
#include "experts.cuh"

F32_EXPERTS(Q5_K, q5_k)
HALF_EXPERTS(Q5_K, q5_k)
INT8_EXPERTS(Q5_K, q5_k)
