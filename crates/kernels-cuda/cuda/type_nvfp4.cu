// The products of NVFP4.
#include "products.cuh"

F32_PRODUCTS(NVFP4, nvfp4)
HALF_PRODUCTS(NVFP4, nvfp4)
INT8_PRODUCTS(NVFP4, nvfp4)
INT8_DECODE_TILES(NVFP4, nvfp4)
