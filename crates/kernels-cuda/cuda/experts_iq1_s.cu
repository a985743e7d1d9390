// The products of IQ1_S with experts.
#include "experts.cuh"

F32_EXPERTS(IQ1_S, iq1_s)
HALF_EXPERTS(IQ1_S, iq1_s)
INT8_EXPERTS(IQ1_S, iq1_s)
