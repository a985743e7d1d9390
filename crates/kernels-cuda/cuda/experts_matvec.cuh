// Products of a few pairs of a row and an expert with F32 values.
#pragma once

#include "blocks.cuh"
#include "pairs.cuh"

namespace experts_with_floats {

constexpr int warps = 4;

// What a launch multiplies: up to two matrices of one type, whose results lie one behind the other.
struct Step {
  const float* x;  // [n_rows, n_cols], or [n_rows, n_chosen * n_cols] with `n_own` columns for each expert of a row
  int x_stride;
  float* out;  // [n_rows, n_chosen * (n_outputs[0] + n_outputs[1])]
  int out_stride;
  int n_cols, n_own;
};

// A warp has `Rows` rows of an expert's matrix at a time, as in products with one matrix; the order of a sum depends on
// neither `Rows` nor `Cols` nor which pairs are multiplied together. out_at: the first column of the matrix's results.
template <class B, int Rows, int Cols>
__device__ __forceinline__ void matvec(
    const Planes& w, const Step& step, const Pairs& pairs, int first_row, int n_rows, int out_at) {
  const int lane = threadIdx.x;
  const int n_units = (step.n_cols + B::len - 1) / B::len;
  Group<Cols> group;
  if (first_row >= n_rows || !group.find(pairs, blockIdx.y)) return;

  // Behind the last row, the last one is computed again and not stored.
  size_t row_at[Rows];
  for (int r = 0; r < Rows; r++)
    row_at[r] = (size_t(group.expert) * n_rows + ::min(first_row + r, n_rows - 1)) * n_units;
  const float* row_x[Cols];
  for (int c = 0; c < Cols; c++) {
    const uint32_t row = group.pair[c] / pairs.n_chosen, slot = group.pair[c] % pairs.n_chosen;
    row_x[c] = step.x + size_t(row) * step.x_stride + size_t(slot) * step.n_own;
  }

  float sum[Rows][Cols] = {};
  for (int u = lane; u < n_units; u += 32) {
    B unit[Rows];
#pragma unroll
    for (int r = 0; r < Rows; r++) unit[r].load(w, row_at[r] + u);
#pragma unroll
    for (int g = 0; g < B::len / B::group; g++) {
      float dot[Rows][Cols] = {}, total[Cols] = {};
#pragma unroll
      for (int p = g * B::group / 4; p < (g + 1) * B::group / 4; p++) {
        float4 v[Cols];
#pragma unroll
        for (int c = 0; c < Cols; c++) {
          v[c] = row_piece<B::may_end>(row_x[c], u * B::len + 4 * p, step.n_cols);
          if (B::has_min) total[c] += (v[c].x + v[c].y) + (v[c].z + v[c].w);
        }
#pragma unroll
        for (int r = 0; r < Rows; r++) {
          float4 level = unit[r].piece(p);
#pragma unroll
          for (int c = 0; c < Cols; c++) {
            dot[r][c] = fmaf(level.x, v[c].x, dot[r][c]);
            dot[r][c] = fmaf(level.y, v[c].y, dot[r][c]);
            dot[r][c] = fmaf(level.z, v[c].z, dot[r][c]);
            dot[r][c] = fmaf(level.w, v[c].w, dot[r][c]);
          }
        }
      }
#pragma unroll
      for (int r = 0; r < Rows; r++) {
#pragma unroll
        for (int c = 0; c < Cols; c++) {
          sum[r][c] = fmaf(unit[r].scale(g), dot[r][c], sum[r][c]);
          if (B::has_min) sum[r][c] = fmaf(-unit[r].min(g), total[c], sum[r][c]);
        }
      }
    }
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

}  // namespace experts_with_floats

// Blocks of a pair or a tile are those of the first matrix, then those of the second, which may have no rows.
#define EXPERT_MATVEC(TYPE, NAME, ROWS, COLS)                                                                     \
  extern "C" __global__ void __launch_bounds__(128) expert_matvec_##NAME##_##COLS(                                \
      const uint4* main_0, const uint8_t* high_0, const uint8_t* head_0, const uint4* main_1,                     \
      const uint8_t* high_1, const uint8_t* head_1, int n_rows_0, int n_rows_1, const float* x, int x_stride,     \
      const float* routes, int route_stride, const uint4* tiles, const uint32_t* order, float* out,               \
      int out_stride, int n_cols, int n_own, int n_chosen, int n_experts) {                                       \
    using namespace experts_with_floats;                                                                          \
    const Step step = {x, x_stride, out, out_stride, n_cols, n_own};                                              \
    const Pairs pairs = {routes, route_stride, tiles, order, n_chosen, n_experts};                                \
    const int n_blocks = (n_rows_0 + warps * ROWS - 1) / (warps * ROWS);                                          \
    const bool second = blockIdx.x >= n_blocks;                                                                   \
    const int first_row = ((second ? blockIdx.x - n_blocks : blockIdx.x) * warps + threadIdx.y) * ROWS;           \
    const Planes w = {second ? main_1 : main_0, second ? high_1 : high_0, second ? head_1 : head_0};              \
    matvec<TYPE, ROWS, COLS>(w, step, pairs, first_row, second ? n_rows_1 : n_rows_0,                             \
                             second ? n_chosen * n_rows_0 : 0);                                                   \
  }
