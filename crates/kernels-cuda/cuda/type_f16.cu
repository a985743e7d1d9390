// The products of F16.
#include "products.cuh"

F32_PRODUCTS(F16, f16)
HALF_PRODUCTS(F16, f16)
PARTS_PRODUCTS(F16, f16, 2, 8, 4, 4, 3)
