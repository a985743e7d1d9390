// Products of a packed matrix with a few rows of F32 values, as decode steps need them.
//
// A warp has `Rows` rows of the matrix at a time, so that as many loads of 16 bytes are under way in each lane, and
// a piece of the activations serves all of them. A lane takes every 32nd unit of a row; then lanes are added in
// pairs. The order of a sum depends on neither `Rows` nor `Cols` nor the number of activation rows.
#pragma once

#include "blocks.cuh"

namespace with_floats {

constexpr int warps = 4;

template <class B, int Rows, int Cols>
__device__ __forceinline__ void matvec(
    const Planes& w, const float* x, int x_stride, const float* bias, const float* residual, int residual_stride,
    float* out, int out_stride, int n_rows, int n_cols, int n_batch) {
  const int lane = threadIdx.x;
  const int first_row = (blockIdx.x * warps + threadIdx.y) * Rows;
  const int first_col = blockIdx.y * Cols;
  const int n_units = (n_cols + B::len - 1) / B::len;
  if (first_row >= n_rows) return;

  // Behind the last row and column, the last one is computed again and not stored.
  size_t row_at[Rows];
  for (int r = 0; r < Rows; r++) row_at[r] = size_t(::min(first_row + r, n_rows - 1)) * n_units;
  const float* row_x[Cols];
  for (int c = 0; c < Cols; c++) row_x[c] = x + size_t(::min(first_col + c, n_batch - 1)) * x_stride;

  float sum[Rows][Cols] = {};
  // Units of floats have so little to compute that the next ones are loaded first. What is behind the end is loaded
  // from in front of it, and not used.
  constexpr bool ahead = B::may_end;
  B unit[Rows];
  if (ahead) {
#pragma unroll
    for (int r = 0; r < Rows; r++) unit[r].load(w, row_at[r] + ::min(lane, n_units - 1));
  }
  for (int u = lane; u < n_units; u += 32) {
    B next[Rows];
#pragma unroll
    for (int r = 0; r < Rows; r++) {
      B& to = ahead ? next[r] : unit[r];
      to.load(w, row_at[r] + (ahead ? ::min(u + 32, n_units - 1) : u));
    }
#pragma unroll
    for (int g = 0; g < B::len / B::group; g++) {
      float dot[Rows][Cols] = {}, total[Cols] = {};
#pragma unroll
      for (int p = g * B::group / 4; p < (g + 1) * B::group / 4; p++) {
        float4 v[Cols];
#pragma unroll
        for (int c = 0; c < Cols; c++) {
          v[c] = row_piece<B::may_end>(row_x[c], u * B::len + 4 * p, n_cols);
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
    if (ahead) {
#pragma unroll
      for (int r = 0; r < Rows; r++) unit[r] = next[r];
    }
  }

#pragma unroll
  for (int r = 0; r < Rows; r++) {
#pragma unroll
    for (int c = 0; c < Cols; c++) {
      float s = sum[r][c];
      for (int offset = 16; offset; offset >>= 1) s += __shfl_xor_sync(0xffffffffu, s, offset);
      int row = first_row + r, col = first_col + c;
      if (lane != r * Cols + c || row >= n_rows || col >= n_batch) continue;
      if (bias) s += bias[row];
      if (residual) s += residual[size_t(col) * residual_stride + row];
      out[size_t(col) * out_stride + row] = s;
    }
  }
}

}  // namespace with_floats

// x: [n_batch, n_cols], bias: [n_rows] or null, residual: [n_batch, n_rows] or null, out: [n_batch, n_rows].
#define MATVEC(TYPE, NAME, ROWS, COLS)                                                                       \
  extern "C" __global__ void __launch_bounds__(32 * with_floats::warps) matvec_##NAME##_##COLS(              \
      const uint4* main, const uint8_t* high, const uint8_t* head, const float* x, int x_stride,             \
      const float* bias, const float* residual, int residual_stride, float* out, int out_stride, int n_rows, \
      int n_cols, int n_batch) {                                                                             \
    with_floats::matvec<TYPE, ROWS, COLS>({main, high, head}, x, x_stride, bias, residual, residual_stride,  \
                                          out, out_stride, n_rows, n_cols, n_batch);                         \
  }
