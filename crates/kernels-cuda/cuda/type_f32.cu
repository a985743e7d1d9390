// The products of F32.
#include "products.cuh"

F32_PRODUCTS(F32, f32)
