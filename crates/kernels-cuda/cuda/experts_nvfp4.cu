// The products of NVFP4 with experts.
#include "experts.cuh"

F32_EXPERTS(NVFP4, nvfp4)
HALF_EXPERTS(NVFP4, nvfp4)
INT8_EXPERTS(NVFP4, nvfp4)
