// The products of IQ3_S with experts.
#include "experts.cuh"

F32_EXPERTS(IQ3_S, iq3_s)
HALF_EXPERTS(IQ3_S, iq3_s)
INT8_EXPERTS(IQ3_S, iq3_s)
