#include "attention_decode.cuh"

MAKE_ALL(Q8, q8_0)
