// Keys and values in pages: where they lie, which of them a row sees, and their elements as floats.
//
// Pages have the shape [n_pages, n_kv_heads, page_len, row_len], where `row_len` is the head size, filled up to a
// multiple of eight with zeros. `page_len` is a power of two of at least 16.
//
// Of Q8_0 and Q4_0, `row_len` is a multiple of 32. A head of a page has the levels of all its positions, then their
// scales: an F16 for each 32 levels. FP8 (E4M3) has no scales.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

constexpr uint32_t none = 0xffffffffu;

// A level of Q8_0.
struct Q8 {
  int8_t level;
};

// Two levels of Q4_0. Eight neighbours are a word: the even ones in its lower nibbles, in order, the odd ones in its upper
// ones.
struct Q4 {
  uint8_t levels;
};

// A number of FP8 (E4M3).
struct F8 {
  uint8_t bits;
};

// The type of keys and values, where it is known when a kernel runs.
enum Type { type_f32 = 0, type_f16 = 1, type_bf16 = 2, type_q8_0 = 3, type_q4_0 = 4, type_f8 = 5 };

// The elements that rows are made of.
template <class T>
constexpr int unit_len = 8;
template <>
constexpr int unit_len<Q8> = 32;
template <>
constexpr int unit_len<Q4> = 32;

// Elements of a `T`.
template <class T>
constexpr int packed_len = 1;
template <>
constexpr int packed_len<Q4> = 2;

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

  template <class T>
  __device__ __forceinline__ int row_len() const {
    return (head_dim + unit_len<T> - 1) / unit_len<T> * unit_len<T>;
  }

  // The same for a type of `Type`.
  __device__ __forceinline__ int row_len(int type) const {
    return type == type_q8_0 || type == type_q4_0 ? row_len<Q8>() : row_len<float>();
  }

  // From a position of a head to the next.
  template <class T>
  __device__ __forceinline__ int row_pitch() const {
    return row_len<T>() / packed_len<T>;
  }

  // The first element, or level, of a position of a head.
  template <class T>
  __device__ __forceinline__ size_t at(uint32_t page, int kv_head, uint32_t in_page) const {
    if (page >= uint32_t(n_pages)) __trap();
    const size_t head = (size_t(page) * n_kv_heads + kv_head) << page_shift;
    if constexpr (unit_len<T> == 32) return head * (row_pitch<T>() + row_len<T>() / 16) + in_page * row_pitch<T>();
    return (head + in_page) * row_pitch<T>();
  }

  // The scales of a position of a head; none where elements have none.
  template <class T>
  __device__ __forceinline__ const __half* scales(const T* all, uint32_t page, int kv_head, uint32_t in_page) const {
    if constexpr (unit_len<T> == 32) {
      const T* head = all + at<T>(page, kv_head, 0) + (row_pitch<T>() << page_shift);
      return reinterpret_cast<const __half*>(head) + in_page * (row_len<T>() / 32);
    }
    return nullptr;
  }
};

// Eight elements of a row as they lie in memory, and as four words of two elements of 16 bits.
template <class T>
struct Eight {
  uint4 all;

  __device__ __forceinline__ void clear() { all = {0, 0, 0, 0}; }
  __device__ __forceinline__ void load(const T* row, const __half*, int column) {
    all = *reinterpret_cast<const uint4*>(row + column);
  }
  __device__ __forceinline__ uint4 words() const { return all; }
};

template <>
struct Eight<Q8> {
  uint2 levels;
  uint16_t scale;

  __device__ __forceinline__ void clear() { levels = {0, 0}, scale = 0; }
  __device__ __forceinline__ void load(const Q8* row, const __half* scales, int column) {
    levels = *reinterpret_cast<const uint2*>(row + column);
    scale = reinterpret_cast<const uint16_t*>(scales)[column / 32];
  }

  // Levels times the scale, rounded to halves: 0x6400 and a byte are 1024 and the byte.
  __device__ __forceinline__ static uint32_t two(uint32_t halves, uint32_t scale) {
    const uint32_t zero = 0x64806480u;
    const __half2 level = __hsub2(*reinterpret_cast<const __half2*>(&halves), *reinterpret_cast<const __half2*>(&zero));
    const __half2 product = __hmul2(level, *reinterpret_cast<const __half2*>(&scale));
    return *reinterpret_cast<const uint32_t*>(&product);
  }
  __device__ __forceinline__ uint4 words() const {
    const uint32_t x = levels.x ^ 0x80808080u, y = levels.y ^ 0x80808080u, both = scale | uint32_t(scale) << 16;
    return {two(__byte_perm(x, 0x64646464u, 0x4140), both), two(__byte_perm(x, 0x64646464u, 0x4342), both),
            two(__byte_perm(y, 0x64646464u, 0x4140), both), two(__byte_perm(y, 0x64646464u, 0x4342), both)};
  }
};

template <>
struct Eight<Q4> {
  uint32_t levels;
  uint16_t scale;

  __device__ __forceinline__ void clear() { levels = 0, scale = 0; }
  __device__ __forceinline__ void load(const Q4* row, const __half* scales, int column) {
    levels = *reinterpret_cast<const uint32_t*>(row + column / 2);
    scale = reinterpret_cast<const uint16_t*>(scales)[column / 32];
  }

  // Levels less 8 times the scale, rounded to halves: 0x6400 and a nibble are 1024 and the nibble.
  __device__ __forceinline__ static uint32_t two(uint32_t nibbles, uint32_t scale) {
    const uint32_t zero = 0x64086408u, halves = (nibbles & 0x000f000fu) | 0x64006400u;
    const __half2 level = __hsub2(*reinterpret_cast<const __half2*>(&halves), *reinterpret_cast<const __half2*>(&zero));
    const __half2 product = __hmul2(level, *reinterpret_cast<const __half2*>(&scale));
    return *reinterpret_cast<const uint32_t*>(&product);
  }
  __device__ __forceinline__ uint4 words() const {
    const uint32_t both = scale | uint32_t(scale) << 16;
    return {two(levels, both), two(levels >> 4, both), two(levels >> 8, both), two(levels >> 12, both)};
  }
};

template <>
struct Eight<F8> {
  uint2 numbers;

  __device__ __forceinline__ void clear() { numbers = {0, 0}; }
  __device__ __forceinline__ void load(const F8* row, const __half*, int column) {
    numbers = *reinterpret_cast<const uint2*>(row + column);
  }

  // Numbers in the upper bytes of halves, exactly: one bit further down, behind the sign, they are halves that are 256
  // times too small.
  __device__ __forceinline__ static uint32_t two(uint32_t bytes, uint32_t factor) {
    const uint32_t halves = (bytes & 0x80008000u) | (bytes >> 1 & 0x3f803f80u);
    const __half2 product =
        __hmul2(*reinterpret_cast<const __half2*>(&halves), *reinterpret_cast<const __half2*>(&factor));
    return *reinterpret_cast<const uint32_t*>(&product);
  }
  // NaN, all bits but the sign, makes NaN of all eight.
  __device__ __forceinline__ uint4 words() const {
    const uint32_t x = numbers.x, y = numbers.y;
    const uint32_t carry = ((x & 0x7f7f7f7fu) + 0x01010101u) | ((y & 0x7f7f7f7fu) + 0x01010101u);
    const uint32_t factor = carry & 0x80808080u ? 0x7e007e00u : 0x5c005c00u;
    return {two(__byte_perm(x, 0, 0x1404), factor), two(__byte_perm(x, 0, 0x3424), factor),
            two(__byte_perm(y, 0, 0x1404), factor), two(__byte_perm(y, 0, 0x3424), factor)};
  }
};

// What tensor cores take for a type of pages.
template <class T>
struct Half {
  using type = T;
};
template <>
struct Half<Q8> {
  using type = __half;
};
template <>
struct Half<Q4> {
  using type = __half;
};
template <>
struct Half<F8> {
  using type = __half;
};

// Eight elements of a row of a type of `Type`, as floats.
__device__ __forceinline__ void load_elements(
    const void* all, const Pages& pages, uint32_t page, int kv_head, uint32_t in_page, int column, int type,
    float (&to)[8]) {
  if (type == type_q8_0) {
    const Q8* levels = static_cast<const Q8*>(all);
    const __half scale = pages.scales(levels, page, kv_head, in_page)[column / 32];
    const uint2 eight = *reinterpret_cast<const uint2*>(levels + pages.at<Q8>(page, kv_head, in_page) + column);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint32_t word = i < 4 ? eight.x : eight.y;
      to[i] = __half2float(scale) * float(int8_t(word >> 8 * (i % 4)));
    }
    return;
  }
  if (type == type_q4_0) {
    const Q4* levels = static_cast<const Q4*>(all);
    const float scale = __half2float(pages.scales(levels, page, kv_head, in_page)[column / 32]);
    const uint32_t eight = *reinterpret_cast<const uint32_t*>(levels + pages.at<Q4>(page, kv_head, in_page) + column / 2);
#pragma unroll
    for (int i = 0; i < 8; i++) to[i] = scale * float(int(eight >> (4 * (i / 2) + 16 * (i % 2)) & 15) - 8);
    return;
  }
  const size_t at = pages.at<float>(page, kv_head, in_page) + column;
  if (type == type_f8) {
    const uint2 eight = *reinterpret_cast<const uint2*>(static_cast<const F8*>(all) + at);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint32_t bits = (i < 4 ? eight.x : eight.y) >> 8 * (i % 4) & 0xff;
      const float number = 256.0f * __half2float(__ushort_as_half((bits & 0x80) << 8 | (bits & 0x7f) << 7));
      to[i] = (bits & 0x7f) == 0x7f ? __uint_as_float(0x7fc00000u) : number;
    }
    return;
  }
  if (type == type_f32) {
    load8(static_cast<const float*>(all) + at, to);
  } else if (type == type_f16) {
    load8(static_cast<const __half*>(all) + at, to);
  } else {
    load8(static_cast<const __nv_bfloat16*>(all) + at, to);
  }
}

// The positions that a row sees, and where the words of their pages are.
struct Seen {
  int first, end;
  uint32_t base;
};

// The lists of a step: position and sequence of each row, what is added to the number of a sequence's page, counted
// from its start, to find the page's word in `words`, and one past the last position that each row sees. Without
// `reaches` rows see up to themselves. A window below zero is the length of windows that lie side by side, of which a row
// sees its own.
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
    int first = 0;
    if (window < 0) {
      const uint32_t length = uint32_t(-window);
      first = int(position / length * length);
    } else if (window && position >= uint32_t(window)) {
      first = int(position + 1 - window);
    }
    return {first, int(end), bases[seq]};
  }

  // The page of a position.
  __device__ __forceinline__ uint32_t page(const Seen& seen, int position, int page_shift) const {
    const uint32_t at = seen.base + (uint32_t(position) >> page_shift);
    if (at >= uint32_t(n_words)) __trap();
    return words[at];
  }
};
