// Heads of new rows on their way to attention: norms of single heads, rotary embeddings, and the rows of pages that keys and
// values become.
//
// A warp has a head, in shared memory.
#pragma once
#include "pages.cuh"

// Eight elements to their place in a row of a page. All lanes of a warp call it.
template <class T>
struct Row {
  T* to;
  __half* scales;

  __device__ __forceinline__ void store(int chunk, const float (&x)[8], bool exists) const {
    if (!exists) return;
    if constexpr (sizeof(T) == 4) {
      float4* place = reinterpret_cast<float4*>(to + 8 * chunk);
      place[0] = {x[0], x[1], x[2], x[3]}, place[1] = {x[4], x[5], x[6], x[7]};
    } else {
      __align__(16) T all[8];
#pragma unroll
      for (int i = 0; i < 8; i++) all[i] = from_float<T>(x[i]);
      *reinterpret_cast<uint4*>(to + 8 * chunk) = *reinterpret_cast<const uint4*>(all);
    }
  }
};

// Blocks of 32 elements belong to four lanes. A block with an element that is not finite becomes NaN.
template <>
struct Row<Q8> {
  Q8* to;
  __half* scales;

  __device__ __forceinline__ void store(int chunk, const float (&x)[8], bool exists) const {
    float peak = 0.0f;
    bool is_odd = false;
#pragma unroll
    for (int i = 0; i < 8; i++) peak = fmaxf(peak, fabsf(x[i])), is_odd |= !(fabsf(x[i]) < INFINITY);
    for (int offset = 1; offset < 4; offset *= 2) {
      peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, offset));
      is_odd |= __shfl_xor_sync(0xffffffffu, int(is_odd), offset) != 0;
    }
    if (!exists) return;
    const float scale = peak / 127.0f, inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
    uint32_t word[2] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const float level = is_odd ? 0.0f : fminf(fmaxf(roundf(x[i] * inverse), -127.0f), 127.0f);
      word[i / 4] |= (uint32_t(int(level)) & 0xff) << 8 * (i % 4);
    }
    *reinterpret_cast<uint2*>(to + 8 * chunk) = {word[0], word[1]};
    if (chunk % 4 == 0) scales[chunk / 4] = is_odd ? __ushort_as_half(0x7e00) : __float2half(scale);
  }
};

// As of Q8_0; the element of the largest magnitude, of several the first, has level 0.
template <>
struct Row<Q4> {
  Q4* to;
  __half* scales;

  __device__ __forceinline__ void store(int chunk, const float (&x)[8], bool exists) const {
    float peak = 0.0f;
    bool is_odd = false;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      if (fabsf(x[i]) > fabsf(peak)) peak = x[i];
      is_odd |= !(fabsf(x[i]) < INFINITY);
    }
    for (int offset = 1; offset < 4; offset *= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, peak, offset);
      const bool is_first = (threadIdx.x & offset) != 0;
      if (fabsf(other) > fabsf(peak) || (is_first && fabsf(other) == fabsf(peak))) peak = other;
      is_odd |= __shfl_xor_sync(0xffffffffu, int(is_odd), offset) != 0;
    }
    if (!exists) return;
    const float scale = peak / -8.0f, inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint32_t level = is_odd ? 0 : min(__float2uint_rz(x[i] * inverse + 8.5f), 15u);
      word |= level << (4 * (i / 2) + 16 * (i % 2));
    }
    *reinterpret_cast<uint32_t*>(to + 4 * chunk) = word;
    if (chunk % 4 == 0) scales[chunk / 4] = is_odd ? __ushort_as_half(0x7e00) : __float2half(scale);
  }
};

// The nearest number of FP8, of two the even one, or the largest; NaN for what is not finite.
__device__ __forceinline__ uint32_t to_f8(float x) {
  const float size = fminf(fabsf(x), 448.0f);
  const uint32_t bits = __float_as_uint(size) - (120u << 23);
  const uint32_t normal = (bits + 0x7ffffu + (bits >> 20 & 1)) >> 20;
  const uint32_t number = size < 1.0f / 64.0f ? uint32_t(rintf(size * 512.0f)) : normal;
  return fabsf(x) < INFINITY ? (__float_as_uint(x) >> 24 & 0x80) | number : 0x7f;
}

template <>
struct Row<F8> {
  F8* to;
  __half* scales;

  __device__ __forceinline__ void store(int chunk, const float (&x)[8], bool exists) const {
    if (!exists) return;
    uint32_t word[2] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) word[i / 4] |= to_f8(x[i]) << 8 * (i % 4);
    *reinterpret_cast<uint2*>(to + 8 * chunk) = {word[0], word[1]};
  }
};

// Norm of a head, null for none: x / sqrt(mean(x^2) + eps) * weight.
struct HeadNorm {
  const float* weight;  // [head_dim]
  float eps;
};

// Keys and values of new rows as products made them, and what happens to them and to queries.
struct NewHeads {
  const float* k;  // [n_rows, n_kv_heads * head_dim]; null for none
  int k_stride;
  const float* v;  // as k
  int v_stride;
  const float* table;  // [n_rows, 2 * n_pairs]: cosines, then sines
  int table_stride, n_pairs;
  bool neighbours;  // whether pairs are neighbours, or lie `n_pairs` apart
  HeadNorm q_norm, k_norm;
  const uint32_t* slots;  // [n_rows]: the page times its length, plus the position in the page, or `none`

  // Normalizes a query or a key of a row, and turns it.
  __device__ __forceinline__ void turn(float* x, int row, const HeadNorm& norm, int head_dim) const {
    const int lane = threadIdx.x % 32;
    if (norm.weight) {
      float squares = 0.0f;
      for (int i = lane; i < head_dim; i += 32) squares = fmaf(x[i], x[i], squares);
      for (int offset = 16; offset; offset >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, offset);
      const float scale = 1.0f / sqrtf(squares / float(head_dim) + norm.eps);
      for (int i = lane; i < head_dim; i += 32) x[i] = x[i] * scale * norm.weight[i];
      __syncwarp();
    }
    const float* of_row = table + size_t(row) * table_stride;
    for (int i = lane; i < n_pairs; i += 32) {
      const int a = neighbours ? 2 * i : i, b = neighbours ? a + 1 : a + n_pairs;
      const float c = of_row[i], s = of_row[n_pairs + i], first = x[a], second = x[b];
      x[a] = fmaf(first, c, -(second * s));
      x[b] = fmaf(second, c, first * s);
    }
    __syncwarp();
  }

  // The key of a row, or its value.
  __device__ __forceinline__ const float* at(bool is_value, int row, int kv_head, int head_dim) const {
    return (is_value ? v + size_t(row) * v_stride : k + size_t(row) * k_stride) + kv_head * head_dim;
  }
};

// Brings a head to shared memory, with zeros behind it up to `len` elements.
__device__ __forceinline__ void bring_head(float* x, const float* from, int head_dim, int len) {
  for (int i = threadIdx.x % 32; i < len; i += 32) x[i] = i < head_dim ? from[i] : 0.0f;
  __syncwarp();
}

// Stores a key or a value, filled up with zeros to a row of a page, in its slot.
template <class T>
__device__ __forceinline__ void store_head(const float* x, T* all, const Pages& pages, int kv_head, uint32_t slot) {
  const uint32_t page = slot >> pages.page_shift, in_page = slot & ((1u << pages.page_shift) - 1);
  const int row_len = pages.row_len<T>();
  const Row<T> to = {all + pages.at<T>(page, kv_head, in_page),
                     const_cast<__half*>(pages.scales<T>(all, page, kv_head, in_page))};
  for (int first = 0; 8 * first < row_len; first += 32) {
    const int chunk = first + threadIdx.x % 32;
    const bool exists = 8 * chunk < row_len;
    float eight[8] = {};
    if (exists) load8(x + 8 * chunk, eight);
    to.store(chunk, eight, exists);
  }
}
