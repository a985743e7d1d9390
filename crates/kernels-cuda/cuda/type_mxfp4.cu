// The products of MXFP4.
#include "products.cuh"

F32_PRODUCTS(MXFP4, mxfp4)
HALF_PRODUCTS(MXFP4, mxfp4)
INT8_PRODUCTS(MXFP4, mxfp4)
INT8_DECODE_TILES(MXFP4, mxfp4)
