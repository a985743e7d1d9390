// Products of packed matrices with a few rows of 8-bit activations, as decode steps need them.
//
// Eight lanes of a warp share a row of the matrix, which up to `Cols` rows of activations are multiplied with. A lane
// takes every eighth span of the columns, some spans at a time, the next of which are on their way while these are
// multiplied; then lanes are added in pairs. Sums of integers are exact, and what a block of 32 columns adds is rounded
// in one order, so that the bits of a result do not depend on `Cols` or the number of activation rows.
#pragma once

#include "activations.cuh"
#include "spans.cuh"

namespace with_quants {

constexpr int warps = 4;
constexpr int slots = 8;          // lanes that share a row
constexpr int Rows = 32 / slots;  // of a matrix, for a warp

// The products of a row with rows of activations from `first_col` on, the same in the lanes that share it. What is behind
// the last of `n_batch` is that of the last one.
template <class B, int Cols>
__device__ __forceinline__ void products(
    const Planes& w, const Quantized& x, int row, int first_col, int n_cols, int n_batch, float (&sum)[Cols]) {
  using S = Span<B>;
  constexpr int depth = (Cols == 1 ? 4 : 2) / S::n_blocks;  // spans at a time
  const int slot = threadIdx.x % slots, n_spans = n_cols / S::len;
  const size_t row_at = size_t(row) * n_spans * S::n_units;
  size_t x_at[Cols];
  for (int c = 0; c < Cols; c++) x_at[c] = size_t(::min(first_col + c, n_batch - 1)) * x.stride;

#pragma unroll
  for (int c = 0; c < Cols; c++) sum[c] = 0.0f;
  // Behind the last span, the last one is loaded again and not used.
  S span[depth];
#pragma unroll
  for (int i = 0; i < depth; i++) span[i].load(w, row_at, ::min(slot + slots * i, n_spans - 1));
  wait_for_launch();
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
          QuantBlock block;
          block.load(x, x_at[c] + size_t(s) * S::n_blocks + b);
          sum[c] = fmaf(block.scale, span[i].product(b, level, block), sum[c]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < depth; i++) span[i] = next[i];
  }
#pragma unroll
  for (int c = 0; c < Cols; c++) {
    for (int offset = slots / 2; offset; offset >>= 1) sum[c] += __shfl_xor_sync(0xffffffffu, sum[c], offset);
  }
}

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
  const int slot = threadIdx.x % slots, row = first_row + threadIdx.x / slots;
  const int first_col = blockIdx.x * Cols;
  if (first_row >= n_rows) return wait_for_launch();

  // Behind the last row, the last one is multiplied again and not stored.
  float sum[Cols];
  products<B, Cols>(w, step.x, ::min(row, n_rows - 1), first_col, step.n_cols, step.n_batch, sum);
#pragma unroll
  for (int c = 0; c < Cols; c++) {
    const int col = first_col + c;
    if (slot != c || row >= n_rows || col >= step.n_batch) continue;
    float s = sum[c];
    if (step.bias) s += step.bias[out_at + row];
    if (step.residual) s += step.residual[size_t(col) * step.residual_stride + out_at + row];
    step.out[size_t(col) * step.out_stride + out_at + row] = s;
  }
}

// What becomes of a gate and of what it lets through.
struct Gated {
  const float* bias;  // [2 * n_rows] or null
  bool up_first;      // whether the gate's rows are the last ones of the matrix
  int act;            // as `activate` has it
  float* out;         // [n_batch, n_rows]
  int out_stride;
  // The results as 8-bit integers; where they are wanted, rows are whole blocks of 32.
  uint32_t* quants;    // [n_batch, 32 * stride] bytes
  uint2* blocks;       // [n_batch, stride]
  int stride;
  uint32_t* counters;  // [groups of rows of activations, n_rows / 32], zero between launches; or null for none
};

// activation(gate * x + its bias) * (up * x + its bias), where gate and up are the halves of a matrix of 2 * `n_rows` rows.
// The first half of a warp has rows of the gate, the second half the same rows of the other. The last block of those that
// share 32 results quantizes them.
template <class B, int Cols>
__device__ __forceinline__ void gated(
    const Planes& w, const Quantized& x, const Gated& to, int n_rows, int n_cols, int n_batch) {
  constexpr int own = Rows / 2, half = own * slots, group = 32 / (own * warps);  // blocks that share 32 results
  const int lane = threadIdx.x, first_col = blockIdx.x * Cols;
  const int first_row = (blockIdx.y * warps + threadIdx.y) * own, row = first_row + lane % half / slots;
  const bool is_up = lane >= half;
  if (first_row < n_rows) {
    const int of_w = ::min(row, n_rows - 1) + (is_up != to.up_first ? n_rows : 0);
    float sum[Cols];
    products<B, Cols>(w, x, of_w, first_col, n_cols, n_batch, sum);
#pragma unroll
    for (int c = 0; c < Cols; c++) {
      if (to.bias) sum[c] += to.bias[of_w];
      const float up = __shfl_down_sync(0xffffffffu, sum[c], half);
      const int col = first_col + c;
      if (lane % slots == c && !is_up && row < n_rows && col < n_batch)
        to.out[size_t(col) * to.out_stride + row] = activate(to.act, sum[c]) * up;
    }
  } else {
    wait_for_launch();
  }
  if (!to.counters) return;

  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  const int block = blockIdx.y / group;
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    uint32_t* counter = to.counters + size_t(blockIdx.x) * (n_rows / 32) + block;
    is_last = atomicInc(counter, group - 1) == group - 1;
    __threadfence();
  }
  __syncthreads();
  if (!is_last || threadIdx.y != 0) return;
  static_assert(Cols <= 4, "a warp has four results of each of four rows");
  const int col = first_col + lane / 8, at = 32 * block + lane % 8 * 4;
  const bool inside = lane / 8 < Cols && col < n_batch;
  float4 v = {};
  if (inside) v = __ldcg(reinterpret_cast<const float4*>(to.out + size_t(col) * to.out_stride + at));
  store_quants(v, at, inside, to.quants + size_t(col) * to.stride * 8, to.blocks + size_t(col) * to.stride);
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

#define GATED_INT8(TYPE, NAME, COLS)                                                                                   \
  extern "C" __global__ void __launch_bounds__(32 * with_quants::warps, 4) gated_int8_##NAME##_##COLS(                 \
      const uint4* main, const uint8_t* high, const uint8_t* head, const uint4* quants, const uint2* blocks,           \
      int x_stride, const float* bias, int up_first, int act, float* out, int out_stride, uint32_t* to_quants,         \
      uint2* to_blocks, int to_stride, uint32_t* counters, int n_rows, int n_cols, int n_batch) {                      \
    with_quants::gated<TYPE, COLS>(                                                                                    \
        {main, high, head}, {quants, blocks, x_stride},                                                                \
        {bias, up_first != 0, act, out, out_stride, to_quants, to_blocks, to_stride, counters}, n_rows, n_cols,        \
        n_batch);                                                                                                      \
  }
