// The products of Q4_Z with experts.
#include "experts.cuh"

F32_EXPERTS(Q4_Z, q4_z)
HALF_EXPERTS(Q4_Z, q4_z)
INT8_EXPERTS(Q4_Z, q4_z)
