// The products of BF16 with experts.
#include "experts.cuh"

F32_EXPERTS(BF16, bf16)
HALF_EXPERTS(BF16, bf16)
