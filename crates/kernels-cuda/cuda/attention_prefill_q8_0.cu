#include "attention_prefill.cuh"

MAKE_ALL(Q8, q8_0)
