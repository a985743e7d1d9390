#include "attention_prefill.cuh"

MAKE_ALL(Q4, q4_0)
