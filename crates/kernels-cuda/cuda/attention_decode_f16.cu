#include "attention_decode.cuh"

MAKE_ALL(__half, f16)
