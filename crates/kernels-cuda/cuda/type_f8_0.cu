// The products of F8_0.
#include "products.cuh"

F32_PRODUCTS(F8_0, f8_0)
HALF_PRODUCTS(F8_0, f8_0)
PARTS_PRODUCTS(F8_0, f8_0, 2, 4, 3, 2, 2)
