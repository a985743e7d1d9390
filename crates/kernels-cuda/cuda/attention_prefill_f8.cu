#include "attention_prefill.cuh"

MAKE_ALL(F8, f8)
