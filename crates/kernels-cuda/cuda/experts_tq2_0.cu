// The products of TQ2_0 with experts.
#include "experts.cuh"

F32_EXPERTS(TQ2_0, tq2_0)
HALF_EXPERTS(TQ2_0, tq2_0)
INT8_EXPERTS(TQ2_0, tq2_0)
