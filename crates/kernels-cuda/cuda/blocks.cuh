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

  // The planes advanced by `eights` times eight units, which are whole blocks, in every row.
  template <class B>
  __device__ __forceinline__ Planes after(int eights) const {
    return {main + 8 * eights, high + B::eight_high * eights, head + B::eight_head * eights};
  }
  // Those from unit number `units` on, where a block begins.
  template <class B>
  __device__ __forceinline__ Planes at(uint32_t units) const {
    const auto bytes = [&](int of_eight) { return units / 8 * of_eight + units % 8 * of_eight / 8; };
    return {main + units, high + bytes(B::eight_high), head + bytes(B::eight_head)};
  }
};

// Where a kernel is done with what no other kernel writes, such as its weights. Launches that start early wait here for the
// one in front of them, in every thread; `src/device/dependent.rs` makes an instruction of it for them.
__device__ __forceinline__ void wait_for_launch() { asm volatile("// wait for the launch in front" ::: "memory"); }

__device__ __forceinline__ __half half_at(const uint8_t* bytes, size_t index) {
  return reinterpret_cast<const __half*>(bytes)[index];
}

__device__ __forceinline__ __half2 half2_at(const uint8_t* bytes, size_t index) {
  return reinterpret_cast<const __half2*>(bytes)[index];
}

__device__ __forceinline__ float2 halves_of(uint32_t word) {
  return __half22float2(*reinterpret_cast<const __half2*>(&word));
}

// The 16 bytes of a unit, which are read once and need not stay in the caches.
struct Main {
  uint32_t word[4];

  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    uint4 all = __ldcs(planes.main + unit);
    word[0] = all.x, word[1] = all.y, word[2] = all.z, word[3] = all.w;
  }

};

// Four of the elements of a word of a unit of 32: the first 16 of these lie in low nibbles, the others in high ones.
__device__ __forceinline__ uint32_t nibbles(uint32_t word, int j) { return word >> 4 * j & 0x0f0f0f0f; }

// A word rotated so that bit `from` of each byte becomes bit `to` of one.
__device__ __forceinline__ uint32_t moved(uint32_t word, int from, int to) { return __funnelshift_l(word, word, to - from); }

// Four levels of a byte each as floats, less `zero`: the bits of 2^23 + level, then one exact difference.
__device__ __forceinline__ float4 centered(uint32_t levels, float zero) {
  const float base = 8388608.0f + zero;
  return {__uint_as_float(__byte_perm(levels, 0x4b000000, 0x7440)) - base,
          __uint_as_float(__byte_perm(levels, 0x4b000000, 0x7441)) - base,
          __uint_as_float(__byte_perm(levels, 0x4b000000, 0x7442)) - base,
          __uint_as_float(__byte_perm(levels, 0x4b000000, 0x7443)) - base};
}

// The bytes of a codebook of sixteen that four nibbles stand for.
struct Codebook {
  uint32_t word[4];

  __device__ __forceinline__ uint32_t look_up(uint32_t nibbles) const {
    // The lower three bits of a nibble choose of eight, the upper one between the two that were chosen.
    uint32_t lower = __byte_perm(word[0], word[1], nibbles & 0x7777);
    uint32_t upper = __byte_perm(word[2], word[3], nibbles & 0x7777);
    return __byte_perm(lower, upper, 0x3210 | (nibbles & 0x8888) >> 1);
  }
};

// -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113.
__device__ constexpr Codebook iq4 = {{0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535}};
// Twice the values of FP4: 0 1 2 3 4 6 8 12, then the same below zero.
__device__ constexpr Codebook fp4 = {{0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc}};

// What every type says; each replaces what is different. `load` keeps what it read as it is, and `scale`, `min` and `levels`
// compute: what is loaded for later makes no thread wait now.
struct Unit {
  static constexpr bool is_integer = false;  // whether it has levels
  static constexpr bool is_signed = true;    // whether levels are signed bytes; others are below 2^bits
  static constexpr bool has_min = false;     // whether a minimum is subtracted
  static constexpr bool may_end = false;     // whether a row may end inside of a unit
  __device__ __forceinline__ float min(int) const { return 0.0f; }
};

// What types of integer levels say: `levels_at(word, c, j)` are those of elements 16 * j + 4 * c to 16 * j + 4 * c + 3, as the
// bytes of a word, where `word` is word `c` of the unit; the upper bits are those of `this`. Eight units have `eight_high` and
// `eight_head` bytes of the other planes.
template <class B>
struct Integer : Unit {
  static constexpr bool is_integer = true;
  static constexpr int eight_high = 0;
  static constexpr bool is_signed = false;
  static constexpr int bits = 6;
  static constexpr int zero = 0;  // the level that stands for zero
  // Those of elements 4 * piece to 4 * piece + 3.
  __device__ __forceinline__ uint32_t levels(int piece) const {
    const B* unit = static_cast<const B*>(this);
    return unit->levels_at(unit->main.word[piece % 4], piece % 4, piece / 4);
  }
  __device__ __forceinline__ float4 piece(int piece) const {
    const uint32_t levels = this->levels(piece);
    return B::is_signed ? centered(levels ^ 0x80808080, 128.0f) : centered(levels, float(B::zero));
  }
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

// A quarter of a block of 64 numbers of FP8 (E4M3). With the exponent's bits where binary16 has them, a number is
// that of binary16 over 256, the ones below the normal numbers among them.
struct F8_0 : Unit {
  static constexpr int len = 16, group = 16;
  Main main;
  float d;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    main.load(planes, unit);
    d = reinterpret_cast<const float*>(planes.head)[unit / 4];
  }
  __device__ __forceinline__ float2 pair(uint32_t bytes) const {
    uint32_t halves = (bytes & 0x80008000) | (bytes & 0x7f007f00) >> 1;
    return __half22float2(*reinterpret_cast<const __half2*>(&halves));
  }
  __device__ __forceinline__ float4 piece(int piece) const {
    float2 a = pair(__byte_perm(main.word[piece], 0, 0x1404)), b = pair(__byte_perm(main.word[piece], 0, 0x3424));
    return {a.x, a.y, b.x, b.y};
  }
  __device__ __forceinline__ float scale(int) const { return 256.0f * d; }
};

struct Q4_0 : Integer<Q4_0> {
  static constexpr int len = 32, group = 32, zero = 8;
  static constexpr int eight_head = 16;
  Main main;
  __half d;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    main.load(planes, unit);
    d = half_at(planes.head, unit);
  }
  __device__ __forceinline__ uint32_t levels_at(uint32_t word, int, int j) const { return nibbles(word, j); }
  __device__ __forceinline__ float scale(int) const { return __half2float(d); }
};

struct Q4_1 : Integer<Q4_1> {
  static constexpr int len = 32, group = 32, bits = 4;
  static constexpr int eight_head = 32;
  static constexpr bool has_min = true;
  Main main;
  __half2 dm;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    main.load(planes, unit);
    dm = half2_at(planes.head, unit);
  }
  __device__ __forceinline__ uint32_t levels_at(uint32_t word, int, int j) const { return nibbles(word, j); }
  __device__ __forceinline__ float scale(int) const { return __low2float(dm); }
  __device__ __forceinline__ float min(int) const { return -__high2float(dm); }
};

// As Q4_1, with the level that stands for zero in the place of the minimum; its product with the scale is exact.
struct Q4_Z : Integer<Q4_Z> {
  static constexpr int len = 32, group = 32, bits = 4;
  static constexpr int eight_head = 32;
  static constexpr bool has_min = true;
  Main main;
  __half2 dz;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    main.load(planes, unit);
    dz = half2_at(planes.head, unit);
  }
  __device__ __forceinline__ uint32_t levels_at(uint32_t word, int, int j) const { return nibbles(word, j); }
  __device__ __forceinline__ float scale(int) const { return __low2float(dz); }
  __device__ __forceinline__ float min(int) const { return __low2float(dz) * __high2float(dz); }
};

// The fifth bit of element 4 * p + i is bit p of byte i of the unit's word of the high plane.
__device__ __forceinline__ uint32_t fifth_bits(uint32_t high, int piece) { return moved(high, piece, 4) & 0x10101010; }

struct Q5_0 : Integer<Q5_0> {
  static constexpr int len = 32, group = 32, zero = 16;
  static constexpr int eight_high = 32, eight_head = 16;
  Main main;
  uint32_t high;
  __half d;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    main.load(planes, unit);
    high = reinterpret_cast<const uint32_t*>(planes.high)[unit];
    d = half_at(planes.head, unit);
  }
  __device__ __forceinline__ uint32_t levels_at(uint32_t word, int c, int j) const {
    return nibbles(word, j) | fifth_bits(high, c + 4 * j);
  }
  __device__ __forceinline__ float scale(int) const { return __half2float(d); }
};

struct Q5_1 : Integer<Q5_1> {
  static constexpr int len = 32, group = 32, bits = 5;
  static constexpr int eight_high = 32, eight_head = 32;
  static constexpr bool has_min = true;
  Main main;
  uint32_t high;
  __half2 dm;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    main.load(planes, unit);
    high = reinterpret_cast<const uint32_t*>(planes.high)[unit];
    dm = half2_at(planes.head, unit);
  }
  __device__ __forceinline__ uint32_t levels_at(uint32_t word, int c, int j) const {
    return nibbles(word, j) | fifth_bits(high, c + 4 * j);
  }
  __device__ __forceinline__ float scale(int) const { return __low2float(dm); }
  __device__ __forceinline__ float min(int) const { return -__high2float(dm); }
};

// Half of a block of 32.
struct Q8_0 : Integer<Q8_0> {
  static constexpr int len = 16, group = 16;
  static constexpr int eight_head = 8;
  static constexpr bool is_signed = true;
  Main main;
  __half d;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    main.load(planes, unit);
    d = half_at(planes.head, unit / 2);
  }
  __device__ __forceinline__ uint32_t levels_at(uint32_t word, int, int) const { return word; }
  __device__ __forceinline__ float scale(int) const { return __half2float(d); }
};

// Four of the sixteen sub-blocks of a block, whose head is that of the file: sixteen bytes of scales and minimums,
// d and dmin. Element 4 * p + i lies in bits 2 * (p / 4) of byte i of word p % 4.
struct Q2_K : Integer<Q2_K> {
  static constexpr int len = 64, group = 16, bits = 2;
  static constexpr int eight_head = 40;
  static constexpr bool has_min = true;
  Main main;
  uint32_t scales;
  uint32_t dm;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    main.load(planes, unit);
    const uint32_t* head = reinterpret_cast<const uint32_t*>(planes.head) + unit / 4 * 5;
    scales = head[unit % 4];
    dm = head[4];
  }
  __device__ __forceinline__ uint32_t levels_at(uint32_t word, int, int j) const { return word >> 2 * j & 0x03030303; }
  __device__ __forceinline__ float scale(int group) const { return halves_of(dm).x * float(scales >> 8 * group & 15); }
  __device__ __forceinline__ float min(int group) const { return halves_of(dm).y * float(scales >> (8 * group + 4) & 15); }
};

// Levels of three bits, which lie as Q3_K says.
__device__ __forceinline__ uint32_t three_bits(uint32_t word, const uint32_t (&high)[2], int c, int j) {
  return (word >> 2 * j & 0x03030303) | moved(high[j / 2], c + 4 * (j % 2), 2) & 0x04040404;
}

// Four of the sixteen sub-blocks of a block. The lower bits lie as in Q2_K, bit 2 of element 4 * p + i is bit p % 8
// of byte i of word p / 8 of the high plane. The head has the low nibbles of sixteen scales, their upper bits
// by two, and d.
struct Q3_K : Integer<Q3_K> {
  static constexpr int len = 64, group = 16, zero = 4;
  static constexpr int eight_high = 64, eight_head = 28;
  Main main;
  uint32_t high[2];
  uint32_t low_scales, high_scales;
  __half d;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    main.load(planes, unit);
    uint2 bits = reinterpret_cast<const uint2*>(planes.high)[unit];
    high[0] = bits.x, high[1] = bits.y;
    const uint8_t* head = planes.head + unit / 4 * 14;
    low_scales = reinterpret_cast<const uint16_t*>(head)[unit % 4];
    high_scales = head[8 + unit % 4];
    d = half_at(head, 6);
  }
  __device__ __forceinline__ uint32_t levels_at(uint32_t word, int c, int j) const {
    return three_bits(word, high, c, j);
  }
  __device__ __forceinline__ float scale(int group) const {
    int low = low_scales >> 4 * group & 15, upper = high_scales >> 2 * group & 3;
    return __half2float(d) * float((low | upper << 4) - 32);
  }
};

// Scale and minimum of one of the eight sub-blocks of a block of Q4_K or Q5_K, whose head is that of the file:
// d, dmin and twelve bytes.
struct KScales {
  uint4 head;
  uint32_t sub;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    head = reinterpret_cast<const uint4*>(planes.head)[unit / 8];
    sub = unit % 8;
  }
  // Those of all first or all last four sub-blocks are taken from the words together.
  __device__ __forceinline__ float scaled() const {
    const uint32_t upper = (head.w & 0x0f0f0f0f) | (head.y >> 2 & 0x30303030);
    return halves_of(head.x).x * own_of(sub < 4 ? head.y & 0x3f3f3f3f : upper);
  }
  __device__ __forceinline__ float minimum() const {
    const uint32_t upper = (head.w >> 4 & 0x0f0f0f0f) | (head.z >> 2 & 0x30303030);
    return halves_of(head.x).y * own_of(sub < 4 ? head.z & 0x3f3f3f3f : upper);
  }
  __device__ __forceinline__ float own_of(uint32_t four) const {
    return __uint_as_float(__byte_perm(four, 0x4b000000, 0x7440 + sub % 4)) - 8388608.0f;
  }
};

struct Q4_K : Integer<Q4_K> {
  static constexpr int len = 32, group = 32, bits = 4;
  static constexpr int eight_head = 16;
  static constexpr bool has_min = true;
  Main main;
  KScales k;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    main.load(planes, unit);
    k.load(planes, unit);
  }
  __device__ __forceinline__ uint32_t levels_at(uint32_t word, int, int j) const { return nibbles(word, j); }
  __device__ __forceinline__ float scale(int) const { return k.scaled(); }
  __device__ __forceinline__ float min(int) const { return k.minimum(); }
};

struct Q5_K : Integer<Q5_K> {
  static constexpr int len = 32, group = 32, bits = 5;
  static constexpr int eight_high = 32, eight_head = 16;
  static constexpr bool has_min = true;
  Main main;
  uint32_t high;
  KScales k;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    main.load(planes, unit);
    high = reinterpret_cast<const uint32_t*>(planes.high)[unit];
    k.load(planes, unit);
  }
  __device__ __forceinline__ uint32_t levels_at(uint32_t word, int c, int j) const {
    return nibbles(word, j) | fifth_bits(high, c + 4 * j);
  }
  __device__ __forceinline__ float scale(int) const { return k.scaled(); }
  __device__ __forceinline__ float min(int) const { return k.minimum(); }
};

// Two of the sixteen sub-blocks of a block, whose head is d and sixteen scales of a byte each. Bits 4 and 5 of
// element 4 * p + i lie in word p / 4 of the high plane, above bit 2 * (p % 4) of byte i.
struct Q6_K : Integer<Q6_K> {
  static constexpr int len = 32, group = 16, zero = 32;
  static constexpr int eight_high = 64, eight_head = 18;
  Main main;
  uint32_t high[2];
  char2 scales;
  __half d;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    main.load(planes, unit);
    uint2 bits = reinterpret_cast<const uint2*>(planes.high)[unit];
    high[0] = bits.x, high[1] = bits.y;
    const uint8_t* head = planes.head + unit / 8 * 18;
    scales = reinterpret_cast<const char2*>(head)[1 + unit % 8];
    d = half_at(head, 0);
  }
  __device__ __forceinline__ uint32_t levels_at(uint32_t word, int c, int j) const {
    return nibbles(word, j) | moved(high[j], 2 * c, 4) & 0x30303030;
  }
  __device__ __forceinline__ float scale(int group) const { return __half2float(d) * float(group ? scales.y : scales.x); }
};

// The four nibbles of piece p lie in the half p / 4 of word p % 4.
struct IQ4_NL : Integer<IQ4_NL> {
  static constexpr int len = 32, group = 32;
  static constexpr int eight_head = 16;
  static constexpr bool is_signed = true;
  Main main;
  __half d;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    main.load(planes, unit);
    d = half_at(planes.head, unit);
  }
  __device__ __forceinline__ uint32_t levels_at(uint32_t word, int, int j) const { return iq4.look_up(word >> 16 * j); }
  __device__ __forceinline__ float scale(int) const { return __half2float(d); }
};

// One of the eight sub-blocks of a block, whose head is that of the file: d, the upper bits of eight scales by two,
// their low nibbles.
struct IQ4_XS : Integer<IQ4_XS> {
  static constexpr int len = 32, group = 32;
  static constexpr int eight_head = 8;
  static constexpr bool is_signed = true;
  Main main;
  uint2 head;
  uint32_t sub;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    main.load(planes, unit);
    head = reinterpret_cast<const uint2*>(planes.head)[unit / 8];
    sub = unit % 8;
  }
  __device__ __forceinline__ uint32_t levels_at(uint32_t word, int, int j) const { return iq4.look_up(word >> 16 * j); }
  __device__ __forceinline__ float scale(int) const {
    const int scale = (head.y >> 4 * sub & 15) | (head.x >> (16 + 2 * sub) & 3) << 4;
    return halves_of(head.x).x * float(scale - 32);
  }
};

// The head is the exponent of the scale, whose half goes with the doubled values of the codebook.
struct MXFP4 : Integer<MXFP4> {
  static constexpr int len = 32, group = 32;
  static constexpr int eight_head = 8;
  static constexpr bool is_signed = true;
  Main main;
  uint32_t e;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    main.load(planes, unit);
    e = planes.head[unit];
  }
  __device__ __forceinline__ uint32_t levels_at(uint32_t word, int, int j) const { return fp4.look_up(word >> 16 * j); }
  __device__ __forceinline__ float scale(int) const {
    return __uint_as_float(e < 2 ? 0x00200000 << e : (e - 1) << 23);
  }
};

// Four of the sixteen sub-blocks of a block of IQ1 or IQ2, whose levels of three bits are numbers of a codebook of
// eight. Bits lie as in Q3_K. The head has sixteen factors of a nibble, then d; a scale is that of `unit` times
// an odd number.
template <class B>
struct ThreeBits : Integer<B> {
  static constexpr int len = 64, group = 16;
  static constexpr int eight_high = 64, eight_head = 20;
  static constexpr bool is_signed = true;
  static constexpr float unit = 0.125f;
  Main main;
  uint32_t high[2];
  uint32_t factors;
  __half d;
  __device__ __forceinline__ void load(const Planes& planes, size_t at) {
    main.load(planes, at);
    uint2 bits = reinterpret_cast<const uint2*>(planes.high)[at];
    high[0] = bits.x, high[1] = bits.y;
    const uint8_t* head = planes.head + at / 4 * 10;
    factors = reinterpret_cast<const uint16_t*>(head)[at % 4];
    d = half_at(head, 4);
  }
  __device__ __forceinline__ uint32_t levels_at(uint32_t word, int c, int j) const {
    uint32_t level = three_bits(word, high, c, j);
    // The four numbers as nibbles.
    level |= level >> 4;
    return __byte_perm(B::first, B::second, __byte_perm(level, 0, 0x4420));
  }
  __device__ __forceinline__ float scale(int group) const { return unit * __half2float(d) * float(2 * (factors >> 4 * group & 15) + 1); }
};

// 8 25 43, then the same below zero.
template <class B>
struct IQ2 : ThreeBits<B> {
  static constexpr uint32_t first = 0x002b1908, second = 0x00d5e7f8;
};

struct IQ2_XXS : IQ2<IQ2_XXS> {};
struct IQ2_XS : IQ2<IQ2_XS> {};
struct IQ2_S : IQ2<IQ2_S> {};

// Eight times -1 0 1, with one more, then with one less.
template <class B>
struct IQ1 : ThreeBits<B> {
  static constexpr uint32_t first = 0x000901f9, second = 0x0007fff7;
};

struct IQ1_S : IQ1<IQ1_S> {};
struct IQ1_M : IQ1<IQ1_M> {};

// One of the eight sub-blocks of a block of IQ3, whose levels of four bits lie as in IQ4_NL. The head has eight
// factors of a nibble, then d; a scale is that of `unit` times an odd number.
template <class B>
struct FourBits : Integer<B> {
  static constexpr int len = 32, group = 32;
  static constexpr int eight_head = 6;
  static constexpr bool is_signed = true;
  Main main;
  __half d;
  uint32_t factors;
  uint32_t sub;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    main.load(planes, unit);
    const uint16_t* head = reinterpret_cast<const uint16_t*>(planes.head) + unit / 8 * 3;
    factors = head[unit % 8 / 4];
    d = half_at(planes.head, unit / 8 * 3 + 2);
    sub = unit % 4;
  }
  __device__ __forceinline__ float scale(int) const {
    return B::unit * __half2float(d) * float(2 * (factors >> 4 * sub & 15) + 1);
  }
};

// 4 12 20 28 36 44 52 62, then the same below zero.
__device__ constexpr Codebook iq3_xxs = {{0x1c140c04, 0x3e342c24, 0xe4ecf4fc, 0xc2ccd4dc}};
// The odd numbers to 15, then the same below zero.
__device__ constexpr Codebook iq3_s = {{0x07050301, 0x0f0d0b09, 0xf9fbfdff, 0xf1f3f5f7}};

struct IQ3_XXS : FourBits<IQ3_XXS> {
  static constexpr float unit = 0.25f;
  __device__ __forceinline__ uint32_t levels_at(uint32_t word, int, int j) const { return iq3_xxs.look_up(word >> 16 * j); }
};

struct IQ3_S : FourBits<IQ3_S> {
  static constexpr float unit = 1.0f;
  __device__ __forceinline__ uint32_t levels_at(uint32_t word, int, int j) const { return iq3_s.look_up(word >> 16 * j); }
};

// 64 levels of two bits, which lie as in Q2_K, and a scale for `units` of them.
template <class B, int units>
struct TwoBits : Integer<B> {
  static constexpr int len = 64, group = 16, zero = 1;
  static constexpr int eight_head = 16 / units;
  Main main;
  __half d;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    main.load(planes, unit);
    d = half_at(planes.head, unit / units);
  }
  __device__ __forceinline__ uint32_t levels_at(uint32_t word, int, int j) const { return word >> 2 * j & 0x03030303; }
  __device__ __forceinline__ float scale(int) const { return __half2float(d); }
};

struct TQ1_0 : TwoBits<TQ1_0, 4> {};
struct TQ2_0 : TwoBits<TQ2_0, 4> {};
// The levels are 0 and 2.
struct Q1_0 : TwoBits<Q1_0, 2> {};
struct Q2_0 : TwoBits<Q2_0, 1> {};

// Half of a block, whose head is four scales of FP8 (E4M3) without a sign for 16 elements each. Their halves go with
// the doubled values of the codebook; 127 is zero. Levels lie as in IQ4_NL.
struct NVFP4 : Integer<NVFP4> {
  static constexpr int len = 32, group = 16;
  static constexpr int eight_head = 16;
  static constexpr bool is_signed = true;
  Main main;
  uint32_t scales;
  __device__ __forceinline__ void load(const Planes& planes, size_t unit) {
    main.load(planes, unit);
    scales = reinterpret_cast<const uint16_t*>(planes.head)[unit];
  }
  __device__ __forceinline__ uint32_t levels_at(uint32_t word, int, int j) const { return fp4.look_up(word >> 16 * j); }
  __device__ __forceinline__ float scale(int group) const {
    const uint32_t bits = scales >> 8 * group & 255, magnitude = bits & 127;
    const float normal = __uint_as_float((magnitude << 20) + (119u << 23));
    const float value = magnitude < 8 ? float(magnitude) * (0.5f / 512.0f) : normal;
    return bits == 127 ? 0.0f : value;
  }
};

// Elements 4 * piece to 4 * piece + 3, for products that round them to 16 bits.
template <class B>
__device__ __forceinline__ float4 weights(const B& unit, int piece) {
  const float scale = unit.scale(4 * piece / B::group);
  if constexpr (!B::is_signed) {
    // Level `l` as 1 + l / 2^bits, which its bits are as the upper ones of a mantissa; what this adds is taken off with the level
    // that stands for zero, or with the minimum.
    const float all = float(1 << B::bits) * scale, zero = float(B::zero) * scale;
    const float less = all + (B::has_min ? unit.min(4 * piece / B::group) : zero);
    const uint32_t bytes = unit.levels(piece) << (7 - B::bits) | 0x80808080;
    const auto weight = [&](int i) {
      return fmaf(all, __uint_as_float(__byte_perm(bytes, 0x3f000000, 0x7044 + 0x100 * i)), -less);
    };
    return {weight(0), weight(1), weight(2), weight(3)};
  } else {
    static_assert(!B::has_min, "minimums go with levels that are not signed");
    const float4 v = unit.piece(piece);
    return {scale * v.x, scale * v.y, scale * v.z, scale * v.w};
  }
}

// Four values of a row of `n`, the first of them number `at`; what is behind the row's end is zero.
template <bool may_end>
__device__ __forceinline__ float4 row_piece(const float* row, int at, int n) {
  if (!may_end || at + 4 <= n) return *reinterpret_cast<const float4*>(row + at);
  return {at < n ? row[at] : 0.0f, at + 1 < n ? row[at + 1] : 0.0f, at + 2 < n ? row[at + 2] : 0.0f, 0.0f};
}

#define FOR_EACH_INTEGER_TYPE(MAKE) \
  MAKE(Q4_0, q4_0)                  \
  MAKE(Q4_1, q4_1)                  \
  MAKE(Q5_0, q5_0)                  \
  MAKE(Q5_1, q5_1)                  \
  MAKE(Q8_0, q8_0)                  \
  MAKE(Q2_K, q2_k)                  \
  MAKE(Q3_K, q3_k)                  \
  MAKE(Q4_K, q4_k)                  \
  MAKE(Q5_K, q5_k)                  \
  MAKE(Q6_K, q6_k)                  \
  MAKE(IQ4_NL, iq4_nl)              \
  MAKE(IQ4_XS, iq4_xs)              \
  MAKE(MXFP4, mxfp4)                \
  MAKE(Q4_Z, q4_z)                  \
  MAKE(IQ1_S, iq1_s)                \
  MAKE(IQ1_M, iq1_m)                \
  MAKE(IQ2_XXS, iq2_xxs)            \
  MAKE(IQ2_XS, iq2_xs)              \
  MAKE(IQ2_S, iq2_s)                \
  MAKE(IQ3_XXS, iq3_xxs)            \
  MAKE(IQ3_S, iq3_s)                \
  MAKE(TQ1_0, tq1_0)                \
  MAKE(TQ2_0, tq2_0)                \
  MAKE(NVFP4, nvfp4)                \
  MAKE(Q1_0, q1_0)                  \
  MAKE(Q2_0, q2_0)

#define FOR_EACH_BLOCK_TYPE(MAKE) \
  MAKE(F32, f32)                  \
  MAKE(F16, f16)                  \
  MAKE(BF16, bf16)                \
  MAKE(F8_0, f8_0)                \
  FOR_EACH_INTEGER_TYPE(MAKE)
