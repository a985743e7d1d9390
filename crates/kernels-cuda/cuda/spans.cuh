// Spans of columns of packed weights, as products with 8-bit activations take them.
#pragma once

#include "blocks.cuh"
#include "quantized.cuh"

// How the columns of a row are shared between the lanes of a warp: a segment's spans go in turn to eight lanes.
constexpr int row_segments = 4;
constexpr int segment_slots = 8;

// Groups of eight spans of a segment; the last segments may have fewer, or none.
__device__ __forceinline__ int segment_groups(int n_spans) {
  constexpr int whole = row_segments * segment_slots;
  return (n_spans + whole - 1) / whole;
}

// The columns that a lane takes at once: a unit or two, a block of activations or two.
template <class B>
struct Span {
  static constexpr int len = B::len < 32 ? 32 : B::len;
  static constexpr int n_units = len / B::len, n_blocks = len / 32;
  B unit[n_units];

  __device__ __forceinline__ void load(const Planes& w, size_t first_unit) {
#pragma unroll
    for (int i = 0; i < n_units; i++) unit[i].load(w, first_unit + i);
  }

  // The levels of a block, in the order of its columns.
  __device__ __forceinline__ void levels(int block, uint32_t (&word)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      int piece = 8 * block + i;
      word[i] = unit[piece / (B::len / 4)].levels(piece % (B::len / 4));
    }
  }

  // The product of a block with activations, over the scale of these.
  __device__ __forceinline__ float product(int block, const uint32_t (&level)[8], const QuantBlock& x) const {
    int lower = 0, upper = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) lower = __dp4a(int(level[i]), int(x.word[i]), lower);
#pragma unroll
    for (int i = 4; i < 8; i++) upper = __dp4a(int(level[i]), int(x.word[i]), upper);
    lower -= B::zero * x.lower;
    upper -= B::zero * x.upper;
    // A block of 32 has one scale, unless groups are shorter; units that are have it in common.
    constexpr bool halves = B::group < 32 && B::group < B::len;
    if (!halves) {
      float sum = unit[0].scale(0) * float(lower + upper);
      return B::has_min ? fmaf(-unit[0].min(0), float(x.lower + x.upper), sum) : sum;
    }
    const int g = 2 * block;
    float sum = fmaf(unit[0].scale(g + 1), float(upper), unit[0].scale(g) * float(lower));
    if (B::has_min) {
      sum = fmaf(-unit[0].min(g), float(x.lower), sum);
      sum = fmaf(-unit[0].min(g + 1), float(x.upper), sum);
    }
    return sum;
  }
};
