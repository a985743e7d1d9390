// Units of packed weights: what 16 bytes of a matrix's first plane hold, as `src/matrix/pack.rs` lays them out.
//
// A block type says how a unit is loaded and what its elements are. Integer types give four levels at a time as
// the bytes of a word; a weight is `scale * (level - zero) - min`. Sums of products take the levels and apply the
// scale once for each group of elements.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

// The planes of a matrix. Each has its rows in order, without gaps; planes that a type does not have are null.
struct Planes {
  const uint4* main;    // [n_rows, n_units]
  const uint8_t* high;  // upper bits of levels, by unit
  const uint8_t* head;  // scales and minimums, by block
};

__device__ __forceinline__ float half_at(const uint8_t* bytes, size_t index) {
  return __half2float(reinterpret_cast<const __half*>(bytes)[index]);
}

__device__ __forceinline__ float2 half2_at(const uint8_t* bytes, size_t index) {
  return __half22float2(reinterpret_cast<const __half2*>(bytes)[index]);
}

// The 16 bytes of a unit, which are read once and need not stay in the caches.
struct Main {
  uint32_t word[4];

  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    uint4 all = __ldcs(planes.main + unit);
    word[0] = all.x, word[1] = all.y, word[2] = all.z, word[3] = all.w;
  }

  // Elements 4 * piece to 4 * piece + 3 of 32: the first 16 lie in low nibbles, the others in high ones.
  __device__ __forceinline__ uint32_t nibbles(int piece) const {
    return (piece < 4 ? word[piece % 4] : word[piece % 4] >> 4) & 0x0f0f0f0f;
  }
};

// Four levels of a byte each as floats, less `zero`: the bits of 2^23 + level, then one exact difference.
__device__ __forceinline__ float4 centered(uint32_t levels, float zero) {
  const float base = 8388608.0f + zero;
  return {__uint_as_float(__byte_perm(levels, 0x4b000000, 0x7440)) - base,
          __uint_as_float(__byte_perm(levels, 0x4b000000, 0x7441)) - base,
          __uint_as_float(__byte_perm(levels, 0x4b000000, 0x7442)) - base,
          __uint_as_float(__byte_perm(levels, 0x4b000000, 0x7443)) - base};
}

// Four bits that follow one another, each as bit 4 of a byte.
__device__ __forceinline__ uint32_t fifth_bits(uint32_t bits) {
  return (bits << 4 & 0x10) | (bits << 11 & 0x1000) | (bits << 18 & 0x100000) | (bits << 25 & 0x10000000);
}

// What every type says; each replaces what is different.
struct Unit {
  static constexpr bool has_min = false;  // whether a minimum is subtracted
  static constexpr bool may_end = false;  // whether a row may end inside of a unit
  __device__ __forceinline__ float min(int) const { return 0.0f; }
};

struct F32 : Unit {
  static constexpr int len = 4, group = 4;
  static constexpr bool may_end = true;
  Main main;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) { main.load(planes, unit); }
  __device__ __forceinline__ float4 piece(int) const {
    return {__uint_as_float(main.word[0]), __uint_as_float(main.word[1]), __uint_as_float(main.word[2]),
            __uint_as_float(main.word[3])};
  }
  __device__ __forceinline__ float scale(int) const { return 1.0f; }
};

struct F16 : Unit {
  static constexpr int len = 8, group = 8;
  static constexpr bool may_end = true;
  Main main;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) { main.load(planes, unit); }
  __device__ __forceinline__ float2 pair(int i) const {
    return __half22float2(*reinterpret_cast<const __half2*>(&main.word[i]));
  }
  __device__ __forceinline__ float4 piece(int piece) const {
    float2 a = pair(2 * piece), b = pair(2 * piece + 1);
    return {a.x, a.y, b.x, b.y};
  }
  __device__ __forceinline__ float scale(int) const { return 1.0f; }
};

struct BF16 : Unit {
  static constexpr int len = 8, group = 8;
  static constexpr bool may_end = true;
  Main main;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) { main.load(planes, unit); }
  __device__ __forceinline__ float4 piece(int piece) const {
    uint32_t a = main.word[2 * piece], b = main.word[2 * piece + 1];
    return {__uint_as_float(a << 16), __uint_as_float(a & 0xffff0000), __uint_as_float(b << 16),
            __uint_as_float(b & 0xffff0000)};
  }
  __device__ __forceinline__ float scale(int) const { return 1.0f; }
};

struct Q4_0 : Unit {
  static constexpr int len = 32, group = 32;
  Main main;
  float d;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    main.load(planes, unit);
    d = half_at(planes.head, unit);
  }
  __device__ __forceinline__ float4 piece(int piece) const { return centered(main.nibbles(piece), 8.0f); }
  __device__ __forceinline__ float scale(int) const { return d; }
};

struct Q4_1 : Unit {
  static constexpr int len = 32, group = 32;
  static constexpr bool has_min = true;
  Main main;
  float2 dm;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    main.load(planes, unit);
    dm = half2_at(planes.head, unit);
  }
  __device__ __forceinline__ float4 piece(int piece) const { return centered(main.nibbles(piece), 0.0f); }
  __device__ __forceinline__ float scale(int) const { return dm.x; }
  __device__ __forceinline__ float min(int) const { return -dm.y; }
};

struct Q5_0 : Unit {
  static constexpr int len = 32, group = 32;
  Main main;
  uint32_t high;
  float d;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    main.load(planes, unit);
    high = reinterpret_cast<const uint32_t*>(planes.high)[unit];
    d = half_at(planes.head, unit);
  }
  __device__ __forceinline__ float4 piece(int piece) const {
    return centered(main.nibbles(piece) | fifth_bits(high >> 4 * piece), 16.0f);
  }
  __device__ __forceinline__ float scale(int) const { return d; }
};

struct Q5_1 : Unit {
  static constexpr int len = 32, group = 32;
  static constexpr bool has_min = true;
  Main main;
  uint32_t high;
  float2 dm;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    main.load(planes, unit);
    high = reinterpret_cast<const uint32_t*>(planes.high)[unit];
    dm = half2_at(planes.head, unit);
  }
  __device__ __forceinline__ float4 piece(int piece) const {
    return centered(main.nibbles(piece) | fifth_bits(high >> 4 * piece), 0.0f);
  }
  __device__ __forceinline__ float scale(int) const { return dm.x; }
  __device__ __forceinline__ float min(int) const { return -dm.y; }
};

// Half of a block of 32.
struct Q8_0 : Unit {
  static constexpr int len = 16, group = 16;
  Main main;
  float d;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    main.load(planes, unit);
    d = half_at(planes.head, unit / 2);
  }
  __device__ __forceinline__ float4 piece(int piece) const {
    return centered(main.word[piece] ^ 0x80808080, 128.0f);
  }
  __device__ __forceinline__ float scale(int) const { return d; }
};

// One of the eight sub-blocks of a block, whose head is that of the file: d, dmin and twelve bytes of scales.
struct Q4_K : Unit {
  static constexpr int len = 32, group = 32;
  static constexpr bool has_min = true;
  Main main;
  float scaled, minimum;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    main.load(planes, unit);
    uint4 head = reinterpret_cast<const uint4*>(planes.head)[unit / 8];
    int sub = unit % 8, shift = sub % 4 * 8;
    uint32_t a = head.y >> shift, b = head.z >> shift, c = head.w >> shift;
    uint32_t sc = sub < 4 ? a & 63 : (c & 15) | (a >> 2 & 48);
    uint32_t m = sub < 4 ? b & 63 : (c >> 4 & 15) | (b >> 2 & 48);
    float2 d = __half22float2(*reinterpret_cast<const __half2*>(&head.x));
    scaled = d.x * float(sc);
    minimum = d.y * float(m);
  }
  __device__ __forceinline__ float4 piece(int piece) const { return centered(main.nibbles(piece), 0.0f); }
  __device__ __forceinline__ float scale(int) const { return scaled; }
  __device__ __forceinline__ float min(int) const { return minimum; }
};

// As Q4_K, with the fifth bit of element i in bit i of the unit's word of the high plane.
struct Q5_K : Q4_K {
  uint32_t high;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    Q4_K::load(planes, unit);
    high = reinterpret_cast<const uint32_t*>(planes.high)[unit];
  }
  __device__ __forceinline__ float4 piece(int piece) const {
    return centered(main.nibbles(piece) | fifth_bits(high >> 4 * piece), 0.0f);
  }
};

// Two of the sixteen sub-blocks of a block, whose head is d and sixteen scales of a byte each. Bits 4 and 5 of
// element 4 * p + i lie in word p / 4 of the high plane, above bit 2 * (p % 4) of byte i.
struct Q6_K : Unit {
  static constexpr int len = 32, group = 16;
  Main main;
  uint32_t high[2];
  float scaled[2];
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    main.load(planes, unit);
    uint2 bits = reinterpret_cast<const uint2*>(planes.high)[unit];
    high[0] = bits.x, high[1] = bits.y;
    const uint8_t* head = planes.head + unit / 8 * 18;
    char2 sc = reinterpret_cast<const char2*>(head)[1 + unit % 8];
    float d = half_at(head, 0);
    scaled[0] = d * float(sc.x);
    scaled[1] = d * float(sc.y);
  }
  __device__ __forceinline__ float4 piece(int piece) const {
    uint32_t upper = high[piece / 4] >> 2 * (piece % 4) & 0x03030303;
    return centered(main.nibbles(piece) | upper << 4, 32.0f);
  }
  __device__ __forceinline__ float scale(int group) const { return scaled[group]; }
};

// Four values of a row of `n`, the first of them number `at`; what is behind the row's end is zero.
template <bool may_end>
__device__ __forceinline__ float4 row_piece(const float* row, int at, int n) {
  if (!may_end || at + 4 <= n) return *reinterpret_cast<const float4*>(row + at);
  return {at < n ? row[at] : 0.0f, at + 1 < n ? row[at + 1] : 0.0f, at + 2 < n ? row[at + 2] : 0.0f, 0.0f};
}

#define FOR_EACH_BLOCK_TYPE(MAKE) \
  MAKE(F32, f32)                  \
  MAKE(F16, f16)                  \
  MAKE(BF16, bf16)                \
  MAKE(Q4_0, q4_0)                \
  MAKE(Q4_1, q4_1)                \
  MAKE(Q5_0, q5_0)                \
  MAKE(Q5_1, q5_1)                \
  MAKE(Q8_0, q8_0)                \
  MAKE(Q4_K, q4_k)                \
  MAKE(Q5_K, q5_k)                \
  MAKE(Q6_K, q6_k)
