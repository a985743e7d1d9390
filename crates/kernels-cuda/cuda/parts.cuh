// Numbers in parts of BF16, which products on tensor cores take.
#pragma once

#include "tensor.cuh"

namespace in_parts {

// Two floats as BF16, or what this leaves over, as BF16 too: the sum of both parts has 16 bits of a float. What is not
// finite leaves nothing.
__device__ __forceinline__ uint32_t part(float a, float b, bool rest) {
  const uint32_t high = pack2<__nv_bfloat16>(a, b);
  if (!rest) return high;
  const float2 rounded = unpack2<__nv_bfloat16>(high);
  return pack2<__nv_bfloat16>(a - rounded.x, b - rounded.y) & ~not_finite2<__nv_bfloat16>(high);
}

}  // namespace in_parts
