// Products of packed matrices with a few rows of 8-bit activations, as decode steps need them.
//
// Eight lanes of a warp share a row of the matrix, which up to `Cols` rows of activations are multiplied with. A lane
// takes every eighth span of the columns, some spans at a time, the next of which are on their way while these are
// multiplied; then lanes are added in pairs. Sums of integers are exact, and what a block of 32 columns adds is rounded
// in one order, so that the bits of a result do not depend on `Cols` or the number of activation rows.
#pragma once

#include "spans.cuh"

namespace with_quants {

constexpr int warps = 4;
constexpr int slots = 8;          // lanes that share a row
constexpr int Rows = 32 / slots;  // of a matrix, for a warp

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
  constexpr int depth = (Cols == 1 ? 4 : 2) / S::n_blocks;  // spans at a time
  const int slot = threadIdx.x % slots, row = first_row + threadIdx.x / slots;
  const int first_col = blockIdx.x * Cols;
  const int n_spans = step.n_cols / S::len;
  if (first_row >= n_rows) return;

  // Behind the last row, column and span, the last one is loaded again and not used.
  const size_t row_at = size_t(::min(row, n_rows - 1)) * n_spans * S::n_units;
  size_t x_at[Cols];
  for (int c = 0; c < Cols; c++) x_at[c] = size_t(::min(first_col + c, step.n_batch - 1)) * step.x.stride;

  float sum[Cols] = {};
  S span[depth];
#pragma unroll
  for (int i = 0; i < depth; i++) span[i].load(w, row_at, ::min(slot + slots * i, n_spans - 1));
  for (int first = slot; first < n_spans; first += slots * depth) {
    S next[depth];
#pragma unroll
    for (int i = 0; i < depth; i++) next[i].load(w, row_at, ::min(first + slots * (depth + i), n_spans - 1));
#pragma unroll
    for (int i = 0; i < depth; i++) {
      const int s = first + slots * i;
      if (s >= n_spans) break;
#pragma unroll
      for (int b = 0; b < S::n_blocks; b++) {
        uint32_t level[8];
        span[i].levels(b, level);
#pragma unroll
        for (int c = 0; c < Cols; c++) {
          QuantBlock x;
          x.load(step.x, x_at[c] + size_t(s) * S::n_blocks + b);
          sum[c] = fmaf(x.scale, span[i].product(b, level, x), sum[c]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < depth; i++) span[i] = next[i];
  }

#pragma unroll
  for (int c = 0; c < Cols; c++) {
    float s = sum[c];
    for (int offset = slots / 2; offset; offset >>= 1) s += __shfl_xor_sync(0xffffffffu, s, offset);
    const int col = first_col + c;
    if (slot != c || row >= n_rows || col >= step.n_batch) continue;
    if (step.bias) s += step.bias[out_at + row];
    if (step.residual) s += step.residual[size_t(col) * step.residual_stride + out_at + row];
    step.out[size_t(col) * step.out_stride + out_at + row] = s;
  }
}

}  // namespace with_quants

#define MATVEC_INT8(TYPE, NAME, COLS)                                                                                  \
  extern "C" __global__ void __launch_bounds__(32 * with_quants::warps, 4) matvec_int8_##NAME##_##COLS(                \
      const uint4* main, const uint8_t* high, const uint8_t* head, const uint4* quants, const uint2* blocks,           \
      int x_stride, const float* bias, const float* residual, int residual_stride, float* out, int out_stride,         \
      int n_rows, int n_cols, int n_batch) {                                                                           \
    using namespace with_quants;                                                                                       \
    const Step step = {{quants, blocks, x_stride}, bias, residual, residual_stride, out, out_stride, n_cols, n_batch}; \
    const int first_row = (blockIdx.y * warps + threadIdx.y) * Rows;                                                   \
    matvec<TYPE, COLS>({main, high, head}, step, first_row, n_rows, 0);                                                \
  }
