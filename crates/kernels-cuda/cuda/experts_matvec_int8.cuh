// Products of a few pairs of a row and an expert with 8-bit activations.
#pragma once

#include "pairs.cuh"
#include "spans.cuh"

namespace experts_with_quants {

constexpr int warps = 4;
constexpr int Rows = 2;  // of a matrix, for a warp

// What a launch multiplies: up to two matrices of one type, whose results lie one behind the other.
struct Step {
  Quantized x;  // [n_rows, n_cols], or [n_rows, n_chosen * n_cols] with `n_own` blocks for each expert of a row
  float* out;   // [n_rows, n_chosen * (n_outputs[0] + n_outputs[1])]
  int out_stride;
  int n_cols, n_own;
};

// As products with one matrix: a warp has two rows of an expert's matrix, and a lane takes every 32nd span of the
// columns, the next one of which is on its way while one is multiplied. The bits of a result depend on neither `Cols`
// nor which pairs are multiplied together. out_at: the first column of the matrix's results.
template <class B, int Cols>
__device__ __forceinline__ void matvec(
    const Planes& w, const Step& step, const Pairs& pairs, int first_row, int n_rows, int out_at) {
  using S = Span<B>;
  const int lane = threadIdx.x;
  const int n_spans = step.n_cols / S::len;
  Group<Cols> group;
  if (first_row >= n_rows || !group.find(pairs, blockIdx.y)) return;

  // Behind the last row, the last one is computed again and not stored.
  size_t row_at[Rows];
  for (int r = 0; r < Rows; r++)
    row_at[r] = (size_t(group.expert) * n_rows + ::min(first_row + r, n_rows - 1)) * n_spans * S::n_units;
  size_t x_at[Cols];
  for (int c = 0; c < Cols; c++) {
    const uint32_t row = group.pair[c] / pairs.n_chosen, slot = group.pair[c] % pairs.n_chosen;
    x_at[c] = size_t(row) * step.x.stride + size_t(slot) * step.n_own;
  }

  float sum[Rows][Cols] = {};
  S span[Rows];
  if (lane < n_spans) {
#pragma unroll
    for (int r = 0; r < Rows; r++) span[r].load(w, row_at[r] + lane * S::n_units);
  }
  for (int s = lane; s < n_spans; s += 32) {
    S next[Rows];
    if (s + 32 < n_spans) {
#pragma unroll
      for (int r = 0; r < Rows; r++) next[r].load(w, row_at[r] + (s + 32) * S::n_units);
    }
#pragma unroll
    for (int b = 0; b < S::n_blocks; b++) {
      uint32_t level[Rows][8];
#pragma unroll
      for (int r = 0; r < Rows; r++) span[r].levels(b, level[r]);
#pragma unroll
      for (int c = 0; c < Cols; c++) {
        QuantBlock x;
        x.load(step.x, x_at[c] + size_t(s) * S::n_blocks + b);
#pragma unroll
        for (int r = 0; r < Rows; r++) sum[r][c] = fmaf(x.scale, span[r].product(b, level[r], x), sum[r][c]);
      }
    }
#pragma unroll
    for (int r = 0; r < Rows; r++) span[r] = next[r];
  }

#pragma unroll
  for (int r = 0; r < Rows; r++) {
#pragma unroll
    for (int c = 0; c < Cols; c++) {
      float s = sum[r][c];
      for (int offset = 16; offset; offset >>= 1) s += __shfl_xor_sync(0xffffffffu, s, offset);
      if (lane != r * Cols + c || first_row + r >= n_rows || c >= group.count) continue;
      const uint32_t row = group.pair[c] / pairs.n_chosen, slot = group.pair[c] % pairs.n_chosen;
      step.out[size_t(row) * step.out_stride + out_at + size_t(slot) * n_rows + first_row + r] = s;
    }
  }
}

}  // namespace experts_with_quants

// Blocks of a pair or a tile are those of the first matrix, then those of the second, which may have no rows.
#define EXPERT_MATVEC_INT8(TYPE, NAME, COLS)                                                                      \
  extern "C" __global__ void __launch_bounds__(128, 4) expert_matvec_int8_##NAME##_##COLS(                        \
      const uint4* main_0, const uint8_t* high_0, const uint8_t* head_0, const uint4* main_1,                     \
      const uint8_t* high_1, const uint8_t* head_1, int n_rows_0, int n_rows_1, const uint4* quants,              \
      const uint2* blocks, int x_stride, const float* routes, int route_stride, const uint4* tiles,               \
      const uint32_t* order, float* out, int out_stride, int n_cols, int n_own, int n_chosen, int n_experts) {    \
    using namespace experts_with_quants;                                                                          \
    const Step step = {{quants, blocks, x_stride}, out, out_stride, n_cols, n_own};                               \
    const Pairs pairs = {routes, route_stride, tiles, order, n_chosen, n_experts};                                \
    const int n_blocks = (n_rows_0 + warps * Rows - 1) / (warps * Rows);                                          \
    const bool second = blockIdx.x >= n_blocks;                                                                   \
    const int first_row = ((second ? blockIdx.x - n_blocks : blockIdx.x) * warps + threadIdx.y) * Rows;           \
    const Planes w = {second ? main_1 : main_0, second ? high_1 : high_0, second ? head_1 : head_0};              \
    matvec<TYPE, COLS>(w, step, pairs, first_row, second ? n_rows_1 : n_rows_0,                                   \
                       second ? n_chosen * n_rows_0 : 0);                                                         \
  }
