#include "attention_prefill.cuh"

MAKE_ALL(__half, f16)
