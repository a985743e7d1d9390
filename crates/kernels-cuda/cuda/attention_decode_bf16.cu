#include "attention_decode.cuh"

MAKE_ALL(__nv_bfloat16, bf16)
