// The products of Q3_K with experts.
#include "experts.cuh"

F32_EXPERTS(Q3_K, q3_k)
HALF_EXPERTS(Q3_K, q3_k)
INT8_EXPERTS(Q3_K, q3_k)
