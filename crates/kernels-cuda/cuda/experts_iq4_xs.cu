// The products of IQ4_XS with experts.
#include "experts.cuh"

F32_EXPERTS(IQ4_XS, iq4_xs)
HALF_EXPERTS(IQ4_XS, iq4_xs)
INT8_EXPERTS(IQ4_XS, iq4_xs)
