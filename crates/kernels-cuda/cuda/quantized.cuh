// Activations as 8-bit integers, the input of the integer products.
//
// A block of 32 values has a scale and the sums of its first and last 16 quants: x is scale * quant. The scale is the
// largest magnitude over 127, quants are rounded to nearest, ties to even. A block whose scale would be subnormal is
// all zeros. One with a value that is not finite keeps that as its scale, and zeros.
#pragma once

#include <stdint.h>

// Rows of them.
struct Quantized {
  const uint4* quants;  // [n_rows, stride, 2]
  const uint2* blocks;  // [n_rows, stride]: the scale, then the two sums in 16 bits each
  int stride;           // blocks from one row to the next

  // Advanced by `n` blocks in every row.
  __device__ __forceinline__ Quantized after(int n) const { return {quants + 2 * n, blocks + n, stride}; }
};

// 32 quants in their order, and what goes with them.
struct QuantBlock {
  uint32_t word[8];
  float scale;
  int lower, upper;  // sums of quants

  __device__ __forceinline__ void load(const Quantized& x, size_t block) {
    const uint4 a = x.quants[2 * block], b = x.quants[2 * block + 1];
    const uint2 head = x.blocks[block];
    word[0] = a.x, word[1] = a.y, word[2] = a.z, word[3] = a.w;
    word[4] = b.x, word[5] = b.y, word[6] = b.z, word[7] = b.w;
    scale = __uint_as_float(head.x);
    lower = int(head.y << 16) >> 16;
    upper = int(head.y) >> 16;
  }
};

// Quantizes and stores four values of a row, of which number `col` is the first. The eight lanes of a block do so
// together, and all lanes of a warp take part; `inside` tells whether there are such columns.
__device__ __forceinline__ void store_quants(float4 v, int col, bool inside, uint32_t* quants, uint2* blocks) {
  const unsigned all = 0xffffffffu;
  // The order of the bits is that of the magnitudes, with what is not a number above all.
  const uint32_t magnitude = 0x7fffffff;
  uint32_t top = max(max(__float_as_uint(v.x) & magnitude, __float_as_uint(v.y) & magnitude),
                     max(__float_as_uint(v.z) & magnitude, __float_as_uint(v.w) & magnitude));
  for (int offset = 4; offset; offset >>= 1) top = max(top, __shfl_xor_sync(all, top, offset));
  float scale = 0.0f;
  uint32_t word = 0;
  if (top >= 0x7f800000) {
    scale = __uint_as_float(top);
  } else if (top >= 0x03fe0000) {  // 127 times the smallest normal number
    scale = __uint_as_float(top) / 127.0f;
    const float over = 1.0f / scale;
    auto quant = [&](float x) { return uint32_t(min(max(__float2int_rn(x * over), -127), 127)) & 0xff; };
    word = quant(v.x) | quant(v.y) << 8 | quant(v.z) << 16 | quant(v.w) << 24;
  }
  int sum = __dp4a(int(word), 0x01010101, 0);
  for (int offset = 2; offset; offset >>= 1) sum += __shfl_xor_sync(all, sum, offset);
  const int upper = __shfl_down_sync(all, sum, 4);
  if (!inside) return;
  quants[col / 4] = word;
  if (col % 32 == 0) blocks[col / 32] = {__float_as_uint(scale), (uint32_t(sum) & 0xffff) | uint32_t(upper) << 16};
}
