// The products of MXFP4 with experts.
#include "experts.cuh"

F32_EXPERTS(MXFP4, mxfp4)
HALF_EXPERTS(MXFP4, mxfp4)
INT8_EXPERTS(MXFP4, mxfp4)
