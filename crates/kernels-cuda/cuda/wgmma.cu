// The products of the types that the tensor cores of capability 9.0 are used for.
#include "matmul_wgmma.cuh"

#define WGMMA_PRODUCTS(TYPE, NAME) \
  MATMUL_WGMMA(TYPE, NAME, 128)    \
  MATMUL_WGMMA(TYPE, NAME, 256)

WGMMA_PRODUCTS(F16, f16)
WGMMA_PRODUCTS(BF16, bf16)
WGMMA_PRODUCTS(Q8_0, q8_0)
WGMMA_PRODUCTS(Q4_K, q4_k)
WGMMA_PRODUCTS(Q6_K, q6_k)
