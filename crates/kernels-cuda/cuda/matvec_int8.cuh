// Products of packed matrices with a few rows of 8-bit activations, as decode steps need them.
//
// A warp has two rows of a matrix and up to `Cols` rows of activations. A lane takes every 32nd span of the columns,
// the next one of which is on its way while one is multiplied; then lanes are added in pairs. Sums of integers are
// exact, and what a block of 32 columns adds is rounded in one order, so that the bits of a result depend on neither
// `Cols` nor the number of activation rows.
#pragma once

#include "spans.cuh"

namespace with_quants {

constexpr int warps = 4;
constexpr int Rows = 2;  // of a matrix, for a warp

// What all parts of a launch share.
struct Step {
  Quantized x;
  const float* bias;      // [n_rows] or null
  const float* residual;  // [n_batch, n_rows] or null
  int residual_stride;
  float* out;  // [n_batch, n_rows]
  int out_stride;
  int n_cols, n_batch;
};

// Rows from `first_row` on of a matrix of `n_rows`, whose results begin at column `out_at`.
template <class B, int Cols>
__device__ __forceinline__ void matvec(const Planes& w, const Step& step, int first_row, int n_rows, int out_at) {
  using S = Span<B>;
  const int lane = threadIdx.x;
  const int first_col = blockIdx.x * Cols;
  const int n_spans = step.n_cols / S::len;
  if (first_row >= n_rows) return;

  // Behind the last row and column, the last one is computed again and not stored.
  size_t row_at[Rows];
  for (int r = 0; r < Rows; r++) row_at[r] = size_t(::min(first_row + r, n_rows - 1)) * n_spans * S::n_units;
  size_t x_at[Cols];
  for (int c = 0; c < Cols; c++) x_at[c] = size_t(::min(first_col + c, step.n_batch - 1)) * step.x.stride;

  float sum[Rows][Cols] = {};
  S span[Rows];
  if (lane < n_spans) {
#pragma unroll
    for (int r = 0; r < Rows; r++) span[r].load(w, row_at[r], lane);
  }
  for (int s = lane; s < n_spans; s += 32) {
    S next[Rows];
    if (s + 32 < n_spans) {
#pragma unroll
      for (int r = 0; r < Rows; r++) next[r].load(w, row_at[r], s + 32);
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
      const int row = first_row + r, col = first_col + c;
      if (lane != r * Cols + c || row >= n_rows || col >= step.n_batch) continue;
      if (step.bias) s += step.bias[out_at + row];
      if (step.residual) s += step.residual[size_t(col) * step.residual_stride + out_at + row];
      step.out[size_t(col) * step.out_stride + out_at + row] = s;
    }
  }
}

}  // namespace with_quants

#define MATVEC_INT8(TYPE, NAME, COLS)                                                                                \
  extern "C" __global__ void __launch_bounds__(32 * with_quants::warps, 4) matvec_int8_##NAME##_##COLS(                          \
      const uint4* main, const uint8_t* high, const uint8_t* head, const uint4* quants, const uint2* blocks,     \
      int x_stride, const float* bias, const float* residual, int residual_stride, float* out, int out_stride,   \
      int n_rows, int n_cols, int n_batch) {                                                                     \
    const with_quants::Step step = {{quants, blocks, x_stride}, bias,   residual, residual_stride, out, out_stride,           \
                       n_cols,                     n_batch};                                                     \
    with_quants::matvec<TYPE, COLS>({main, high, head}, step, (blockIdx.y * with_quants::warps + threadIdx.y) * with_quants::Rows, n_rows, 0);          \
  }
