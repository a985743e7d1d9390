#include "attention_decode.cuh"

MAKE_ALL(Q4, q4_0)
