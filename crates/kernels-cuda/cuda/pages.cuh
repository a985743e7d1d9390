// Keys and values in pages: where they lie, which of them a row sees, and their elements as floats.
//
// Pages have the shape [n_pages, n_kv_heads, page_len, row_len], where `row_len` is the head size, filled up to a
// multiple of eight with zeros. `page_len` is a power of two of at least 16.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

constexpr uint32_t none = 0xffffffffu;

template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) { return x; }
template <>
__device__ __forceinline__ __half from_float<__half>(float x) { return __float2half(x); }
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) { return __float2bfloat16(x); }

// Eight elements from a place that is aligned to 16 bytes.
__device__ __forceinline__ void load8(const float* from, float (&to)[8]) {
  float4 a = reinterpret_cast<const float4*>(from)[0], b = reinterpret_cast<const float4*>(from)[1];
  to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w, to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}

__device__ __forceinline__ void load8(const __half* from, float (&to)[8]) {
  uint4 all = *reinterpret_cast<const uint4*>(from);
  const uint32_t word[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&word[i]));
    to[2 * i] = pair.x, to[2 * i + 1] = pair.y;
  }
}

__device__ __forceinline__ void load8(const __nv_bfloat16* from, float (&to)[8]) {
  uint4 all = *reinterpret_cast<const uint4*>(from);
  const uint32_t word[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    to[2 * i] = __uint_as_float(word[i] << 16), to[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000);
  }
}

// Where pages are, and how they are cut.
struct Pages {
  int n_pages, n_kv_heads, page_shift, head_dim;

  __device__ __forceinline__ int row_len() const { return (head_dim + 7) & ~7; }

  // The first element of a position of a head.
  __device__ __forceinline__ size_t at(uint32_t page, int kv_head, uint32_t in_page) const {
    if (page >= uint32_t(n_pages)) __trap();
    return (((size_t(page) * n_kv_heads + kv_head) << page_shift) + in_page) * row_len();
  }
};

// The positions that a row sees, and where the words of their pages are.
struct Seen {
  int first, end;
  uint32_t base;
};

// The lists of a step: position and sequence of each row, what is added to the number of a sequence's page, counted
// from its start, to find the page's word in `words`, and one past the last position that each row sees. Without
// `reaches` rows see up to themselves.
struct Tables {
  const uint32_t *words, *positions, *seq_of_row, *bases, *reaches;
  int n_words, n_seqs, window;

  // A row without a sequence sees nothing.
  __device__ __forceinline__ Seen seen(int row) const {
    const uint32_t seq = seq_of_row[row];
    if (seq == none) return {0, 0, 0};
    if (seq >= uint32_t(n_seqs)) __trap();
    const uint32_t position = positions[row], end = reaches ? reaches[row] : position + 1;
    if (position > 0x7ffffffeu || end > 0x7fffffffu) __trap();
    const int first = window && position >= uint32_t(window) ? int(position + 1 - window) : 0;
    return {first, int(end), bases[seq]};
  }

  // The page of a position.
  __device__ __forceinline__ uint32_t page(const Seen& seen, int position, int page_shift) const {
    const uint32_t at = seen.base + (uint32_t(position) >> page_shift);
    if (at >= uint32_t(n_words)) __trap();
    return words[at];
  }
};
