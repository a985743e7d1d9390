// The products of Q4_Z.
#include "products.cuh"

F32_PRODUCTS(Q4_Z, q4_z)
HALF_PRODUCTS(Q4_Z, q4_z)
INT8_PRODUCTS(Q4_Z, q4_z)
LEVELS_PRODUCTS(Q4_Z, q4_z)
INT8_DECODE_TILES(Q4_Z, q4_z)
