// The products of TQ1_0 with experts.
#include "experts.cuh"

F32_EXPERTS(TQ1_0, tq1_0)
HALF_EXPERTS(TQ1_0, tq1_0)
INT8_EXPERTS(TQ1_0, tq1_0)
