// The products of BF16.
#include "products.cuh"

F32_PRODUCTS(BF16, bf16)
HALF_PRODUCTS(BF16, bf16)
PARTS_PRODUCTS(BF16, bf16, 2, 8, 4, 4, 3)
