// The products of IQ4_NL with experts.
#include "experts.cuh"

F32_EXPERTS(IQ4_NL, iq4_nl)
HALF_EXPERTS(IQ4_NL, iq4_nl)
INT8_EXPERTS(IQ4_NL, iq4_nl)
