// The products of IQ1_M with experts.
#include "experts.cuh"

F32_EXPERTS(IQ1_M, iq1_m)
HALF_EXPERTS(IQ1_M, iq1_m)
INT8_EXPERTS(IQ1_M, iq1_m)
