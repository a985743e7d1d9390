// The products of TQ1_0.
#include "products.cuh"

F32_PRODUCTS(TQ1_0, tq1_0)
HALF_PRODUCTS(TQ1_0, tq1_0)
INT8_PRODUCTS(TQ1_0, tq1_0)
