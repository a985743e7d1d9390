// The products of IQ2_S with experts.
#include "experts.cuh"

F32_EXPERTS(IQ2_S, iq2_s)
HALF_EXPERTS(IQ2_S, iq2_s)
INT8_EXPERTS(IQ2_S, iq2_s)
