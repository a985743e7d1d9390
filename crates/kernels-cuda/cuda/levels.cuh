// Fragments of levels on tensor cores, with activations in BF16.
//
// Levels are integers of at most eight bits, which BF16 holds exactly: a product rounds its activations alone, and the scale of
// a group of 16 or 32 columns multiplies the sum of that group in F32. Types with minimums have level `l` as 2 + 2 l / 2^bits,
// which takes one operation less; what this adds belongs to the minimum, whose product with the sum of a block's activations
// is that of two parts of BF16 each.
#pragma once

#include "blocks.cuh"
#include "quantized.cuh"
#include "tiles.cuh"

namespace by_levels {

// Rows of activations, as `quantized.cuh` says.
struct Rounded {
  const uint4* values;  // [n_rows, stride, 4]
  const uint2* sums;    // [n_rows, stride]
  int stride;           // blocks from one row to the next
};

// d = a b + c, by pairs of BF16.
__device__ __forceinline__ uint32_t fma2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
__device__ __forceinline__ constexpr uint32_t twice(uint32_t bits) { return bits | bits << 16; }
// The bits of an integer of at most 128 in BF16.
__device__ __forceinline__ constexpr uint32_t bits_of(int n) {
  uint32_t exponent = 127, top = n < 0 ? -n : n;
  while (top < 128) top *= 2, exponent--;
  return (n < 0 ? 0x8000u : 0u) | (exponent + 7) << 7 | (top & 127);
}

// As `mma`, over zeros.
__device__ __forceinline__ void mma_from_zero(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

// Levels as pairs: the first and the third, the second and the fourth.
template <class B>
__device__ __forceinline__ uint2 pairs_of(uint32_t levels) {
  constexpr uint32_t first = 0x7270, second = 0x7371;
  if constexpr (B::is_signed) {
    // 128 and the lower seven bits, less 128, or less 256 for a negative level.
    const uint32_t low = levels & 0x7f7f7f7f, sign = levels & 0x80808080, one = twice(0x3f80);
    const auto pair = [&](uint32_t which) {
      return fma2(__byte_perm(low, 0x43434343, which), one, __byte_perm(sign, 0xc3c3c3c3, which));
    };
    return {pair(first), pair(second)};
  } else {
    const uint32_t mantissa = levels << (7 - B::bits);
    const uint32_t x = __byte_perm(mantissa, 0x40404040, first), y = __byte_perm(mantissa, 0x40404040, second);
    if constexpr (B::has_min) return {x, y};
    constexpr uint32_t scale = twice(bits_of(1 << (B::bits - 1))), less = twice(bits_of(-(1 << B::bits) - B::zero));
    return {fma2(x, scale, less), fma2(y, scale, less)};
  }
}

// 16 rows of four units, as a warp has them: lane 4 g + c has word `c` of each unit of rows g and g + 8, and what else unit `c`
// of both rows has.
template <class B>
struct Fragment {
  static constexpr int n_blocks = B::len / 8;  // of 32 columns
  static constexpr int group = B::len == 16 ? 32 : B::group;
  static constexpr int n_own = B::len < group ? 1 : B::len / group;  // groups of a unit
  static constexpr int n_high = B::eight_high / 32;
  uint32_t word[4][2];
  uint32_t high[2][n_high ? n_high : 1];
  float scale[2][n_own], min[2][n_own];

  // Where unit `u` of row `r` lies in shared memory: rows of eight that are read together are in different banks.
  static __device__ __forceinline__ int place(int r, int u) { return u * 16 + (r ^ 2 * u); }

  // All but the words.
  __device__ __forceinline__ void set(int half, const B& unit) {
    if constexpr (n_high == 1) high[half][0] = unit.high;
    if constexpr (n_high == 2) high[half][0] = unit.high[0], high[half][1] = unit.high[1];
#pragma unroll
    for (int i = 0; i < n_own; i++) {
      scale[half][i] = B::has_min ? float(1 << (B::bits - 1)) * unit.scale(i) : unit.scale(i);
      if (B::has_min) min[half][i] = fmaf(2.0f, scale[half][i], unit.min(i));
    }
  }

  // The words of units that lie in shared memory.
  __device__ __forceinline__ void load_words(const uint4* units) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int u = 0; u < 4; u += 2) {
      uint32_t of[4];
      load_matrices(of, units + place(lane % 16, u + lane / 16));
      word[u][0] = of[0], word[u][1] = of[1], word[u + 1][0] = of[2], word[u + 1][1] = of[3];
    }
  }

  // A block as two operands of 16 columns each.
  __device__ __forceinline__ void operands(int block, uint32_t (&a)[2][4]) const {
    const int c = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int at = 2 * block + i, u = 16 * at / B::len, j = at % (B::len / 16);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        B unit;
        if constexpr (n_high == 1) unit.high = __shfl_sync(0xffffffffu, high[half][0], u, 4);
        if constexpr (n_high == 2) {
          // The word that levels `j` need; the other one is not read.
          constexpr int each = B::len / 32;
          unit.high[j / each] = __shfl_sync(0xffffffffu, high[half][j / each], u, 4);
        }
        const uint2 pairs = pairs_of<B>(unit.levels_at(word[u][half], c, j));
        a[i][half] = pairs.x, a[i][2 + half] = pairs.y;
      }
    }
  }

  // The scale of half of a block.
  __device__ __forceinline__ float scale_of(int block, int i, int half) const {
    const int at = 32 * block + 16 * i;
    return __shfl_sync(0xffffffffu, scale[half][at % B::len / group], at / B::len, 4);
  }

  // Minimums of the lane's own unit as an operand: both parts with each part of a sum.
  static __device__ __forceinline__ void minimums(const float (&of)[2], uint32_t (&a)[4]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      a[half] = pack2<__nv_bfloat16>(-of[half], -of[half]);
      const float rest = -of[half] - unpack2<__nv_bfloat16>(a[half]).x;
      a[2 + half] = pack2<__nv_bfloat16>(rest, rest);
    }
  }
};

// Adds the products of the columns of four units and 8 * NT rows of activations, of which a lane has those of row `lane / 4` of
// each eight: `x.values(n, block)`, and `x.sums(n, block)` of any block. Fragments have blocks in order, then minimums.
template <class B, int MT, int NT, class X>
__device__ __forceinline__ void multiply(const Fragment<B> (&w)[MT], const X& x, float (&sum)[MT][NT][4]) {
  using F = Fragment<B>;
#pragma unroll
  for (int block = 0; block < F::n_blocks; block++) {
    uint4 of_x[NT];
#pragma unroll
    for (int n = 0; n < NT; n++) of_x[n] = x.values(n, block);
#pragma unroll
    for (int m = 0; m < MT; m++) {
      uint32_t a[2][4];
      w[m].operands(block, a);
#pragma unroll
      for (int first = 0; first < 2; first += F::group / 16) {
        const float scale[2] = {w[m].scale_of(block, first, 0), w[m].scale_of(block, first, 1)};
#pragma unroll
        for (int n = 0; n < NT; n++) {
          float product[4];
          if (first == 0) mma_from_zero(product, a[0], of_x[n].x, of_x[n].y);
          if (first == 1) mma_from_zero(product, a[1], of_x[n].z, of_x[n].w);
          if (F::group == 32) mma<__nv_bfloat16>(product, a[1], of_x[n].z, of_x[n].w);
#pragma unroll
          for (int i = 0; i < 4; i++) sum[m][n][i] = fmaf(scale[i / 2], product[i], sum[m][n][i]);
        }
      }
    }
  }
  if constexpr (B::has_min) {
    constexpr int n_own = B::len / 32;  // blocks of a unit
#pragma unroll
    for (int i = 0; i < n_own; i++) {
      uint2 of_x[NT];
#pragma unroll
      for (int n = 0; n < NT; n++) of_x[n] = x.sums(n, threadIdx.x % 4 * n_own + i);
#pragma unroll
      for (int m = 0; m < MT; m++) {
        const float(&min)[2][F::n_own] = w[m].min;
        // Of 16 columns: that of the last ones for all, and what the first ones have more.
        constexpr bool by_halves = F::group == 16;
        const int last = by_halves ? 2 * i + 1 : 0;
        uint32_t a[4];
        F::minimums({min[0][last], min[1][last]}, a);
#pragma unroll
        for (int n = 0; n < NT; n++) mma<__nv_bfloat16>(sum[m][n], a, of_x[n].x, of_x[n].x);
        if constexpr (by_halves) {
          F::minimums({min[0][2 * i] - min[0][last], min[1][2 * i] - min[1][last]}, a);
#pragma unroll
          for (int n = 0; n < NT; n++) mma<__nv_bfloat16>(sum[m][n], a, of_x[n].y, of_x[n].y);
        }
      }
    }
  }
}

}  // namespace by_levels
