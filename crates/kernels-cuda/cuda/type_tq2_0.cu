// The products of TQ2_0.
#include "products.cuh"

F32_PRODUCTS(TQ2_0, tq2_0)
HALF_PRODUCTS(TQ2_0, tq2_0)
INT8_PRODUCTS(TQ2_0, tq2_0)
LEVELS_PRODUCTS(TQ2_0, tq2_0)
