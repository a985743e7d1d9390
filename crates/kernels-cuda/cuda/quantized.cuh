// Activations in blocks of 32, the input of products with levels: 8-bit integers, or BF16.
//
// As integers, a block has a scale and the sums of its first and last 16 quants: x is scale * quant. The scale is the
// largest magnitude over 127, quants are rounded to nearest, ties to even. A block whose scale would be subnormal is
// all zeros. One with a value that is not finite keeps that as its scale, and zeros.
//
// As BF16, a block is four pieces of 16 bytes, in the order in which lanes take them: piece `c` has elements 4 c and 4 c + 2,
// 4 c + 1 and 4 c + 3, then the same four of its last 16. It has two sums of what they are rounded to, of all 32 and of the
// first 16, in two parts of BF16 each, which keep 16 bits. Rows end with zeros, up to a multiple of 512 columns.
#pragma once

#include <stdint.h>

#include "tensor.cuh"

// Rows of integers.
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

// Stores four values of a row as integers, as `BlockRows` has them.
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

// BF16, and what this leaves over, as BF16 too; what is not finite leaves nothing.
__device__ __forceinline__ uint32_t two_parts(float x) {
  const float high = unpack2<__nv_bfloat16>(pack2<__nv_bfloat16>(x, 0.0f)).x, rest = x - high;
  return pack2<__nv_bfloat16>(x, fabsf(high) < INFINITY ? rest : 0.0f);
}

// Stores them in BF16.
__device__ __forceinline__ void store_rounded(float4 v, int col, bool inside, uint2* values, uint2* sums) {
  const unsigned all = 0xffffffffu;
  const uint2 pairs = {pack2<__nv_bfloat16>(v.x, v.z), pack2<__nv_bfloat16>(v.y, v.w)};
  const float2 a = unpack2<__nv_bfloat16>(pairs.x), b = unpack2<__nv_bfloat16>(pairs.y);
  float half = (a.x + b.x) + (a.y + b.y);
  for (int offset = 2; offset; offset >>= 1) half += __shfl_xor_sync(all, half, offset);
  const float whole = half + __shfl_xor_sync(all, half, 4);
  if (!inside) return;
  const int block = col / 32, at = col % 32 / 4;
  values[(block * 4 + at % 4) * 2 + at / 4] = pairs;
  if (at == 0) sums[block] = {two_parts(whole), two_parts(half)};
}

// Where rows of activations go for the product behind.
struct BlockRows {
  uint32_t* values;  // [n_rows, stride] blocks of 32 bytes, or of 64 in BF16; or null for none
  uint2* heads;      // [n_rows, stride]: scales and sums of quants, or sums of BF16
  int stride;
  int in_bf16;

  // Columns that are stored of a row, with the zeros behind it.
  __device__ __forceinline__ int reach(int n_cols) const { return in_bf16 ? (n_cols + 511) / 512 * 512 : n_cols; }

  // Stores four values of a row, of which number `col` is the first. The eight lanes of a block do so together, and all
  // lanes of a warp take part; `inside` tells whether there are such columns.
  __device__ __forceinline__ void store(size_t row, float4 v, int col, bool inside) const {
    uint2* own = heads + row * stride;
    if (in_bf16)
      store_rounded(v, col, inside, reinterpret_cast<uint2*>(values) + row * stride * 8, own);
    else
      store_quants(v, col, inside, values + row * stride * 8, own);
  }
};
