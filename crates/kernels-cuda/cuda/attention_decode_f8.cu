#include "attention_decode.cuh"

MAKE_ALL(F8, f8)
