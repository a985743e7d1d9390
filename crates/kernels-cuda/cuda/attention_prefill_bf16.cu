#include "attention_prefill.cuh"

MAKE_ALL(__nv_bfloat16, bf16)
