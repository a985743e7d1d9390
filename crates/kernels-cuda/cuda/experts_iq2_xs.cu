// The products of IQ2_XS with experts.
#include "experts.cuh"

F32_EXPERTS(IQ2_XS, iq2_xs)
HALF_EXPERTS(IQ2_XS, iq2_xs)
INT8_EXPERTS(IQ2_XS, iq2_xs)
