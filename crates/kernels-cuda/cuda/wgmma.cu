// The products of the types that the tensor cores of capability 9.0 are used for; gated ones of those whose activations are BF16.
#include "matmul_wgmma.cuh"

#define WGMMA_PRODUCTS(TYPE, NAME) \
  MATMUL_WGMMA(TYPE, NAME, 128)    \
  MATMUL_WGMMA(TYPE, NAME, 256)

#define GATED_PRODUCTS(TYPE, NAME) \
  GATED_WGMMA(TYPE, NAME, 128)     \
  GATED_WGMMA(TYPE, NAME, 256)

WGMMA_PRODUCTS(F16, f16)
WGMMA_PRODUCTS(BF16, bf16)
WGMMA_PRODUCTS(Q8_0, q8_0)
WGMMA_PRODUCTS(Q4_K, q4_k)
WGMMA_PRODUCTS(Q6_K, q6_k)

GATED_PRODUCTS(BF16, bf16)
GATED_PRODUCTS(Q8_0, q8_0)
GATED_PRODUCTS(Q4_K, q4_k)
GATED_PRODUCTS(Q6_K, q6_k)
