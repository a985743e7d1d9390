// Products of packed matrices with a few rows of 8-bit activations, as decode steps need them.
//
// A warp has two rows of the matrix, which up to `Cols` rows of activations are multiplied with. The columns are cut into
// four segments of whole groups of eight spans. A lane has every eighth span of a segment, some at a time, the next of which
// are on their way while these are multiplied. Then the segments are added in their order, and the eight lanes of each in
// pairs. Sums of integers are exact, and what a block of 32 columns adds is rounded in one order, so that the bits of a
// result do not depend on `Cols` or the number of activation rows.
//
// So a row of 4096 columns is on its way at once, and a matrix of a few thousand rows fills a card: what a product takes is
// the time of its bytes, and not that of one load after another.
#pragma once

#include "activations.cuh"
#include "spans.cuh"

namespace with_quants {

constexpr int warps = 4;
constexpr int Rows = 2;  // of a matrix, for a warp

// The products of two rows with rows of activations from `first_col` on, the same in all lanes. What is behind the last of
// `n_batch` is that of the last one.
template <class B, int Cols>
__device__ __forceinline__ void products(
    const Planes& w, const Quantized& x, const int (&row)[Rows], int first_col, int n_cols, int n_batch,
    float (&sum)[Rows][Cols]) {
  using S = Span<B>;
  constexpr int depth = Cols == 1 && S::n_blocks == 1 ? 2 : 1;  // spans at a time
  const int slot = threadIdx.x % segment_slots, n_spans = n_cols / S::len;
  const int length = segment_groups(n_spans) * segment_slots, start = threadIdx.x / segment_slots * length;
  const int end = ::min(start + length, n_spans);
  // Offsets of a lane's units and blocks, the same in all steps: the base pointers advance, uniformly for all lanes.
  size_t row_at[Rows], x_at[Cols];
#pragma unroll
  for (int r = 0; r < Rows; r++) row_at[r] = (size_t(row[r]) * n_spans + start + slot) * S::n_units;
#pragma unroll
  for (int c = 0; c < Cols; c++)
    x_at[c] = size_t(::min(first_col + c, n_batch - 1)) * x.stride + size_t(start + slot) * S::n_blocks;
#pragma unroll
  for (int i = 0; i < Rows * Cols; i++) sum[i / Cols][i % Cols] = 0.0f;
  const int n_steps = (length + segment_slots * depth - 1) / (segment_slots * depth);
  // What is behind the last span is not loaded and not used.
  auto load = [&](S(&to)[depth][Rows], int step) {
#pragma unroll
    for (int i = 0; i < depth; i++) {
      const int group = step * depth + i;
      if (start + slot + group * segment_slots >= end) break;
      const Planes planes = w.after<B>(group * S::n_units);
#pragma unroll
      for (int r = 0; r < Rows; r++) to[i][r].load(planes, row_at[r]);
    }
  };
  auto multiply = [&](const S(&span)[depth][Rows], int step) {
#pragma unroll
    for (int i = 0; i < depth; i++) {
      const int group = step * depth + i;
      if (start + slot + group * segment_slots >= end) break;
      const Quantized blocks = x.after(group * segment_slots * S::n_blocks);
#pragma unroll
      for (int b = 0; b < S::n_blocks; b++) {
        uint32_t level[Rows][8];
#pragma unroll
        for (int r = 0; r < Rows; r++) span[i][r].levels(b, level[r]);
#pragma unroll
        for (int c = 0; c < Cols; c++) {
          QuantBlock block;
          block.load(blocks, x_at[c] + b);
#pragma unroll
          for (int r = 0; r < Rows; r++)
            sum[r][c] = fmaf(block.scale, span[i][r].product(b, level[r], block), sum[r][c]);
        }
      }
    }
  };
  // Unrolled by two with alternating buffers, so that no registers are copied between steps.
  S even[depth][Rows], odd[depth][Rows];
  load(even, 0);
  wait_for_launch();
#pragma unroll 1
  for (int step = 0; step < n_steps; step += 2) {
    load(odd, step + 1);
    multiply(even, step);
    load(even, step + 2);
    multiply(odd, step + 1);
  }
#pragma unroll
  for (int i = 0; i < Rows * Cols; i++) {
    const float own = sum[i / Cols][i % Cols];
    float total = __shfl_sync(0xffffffffu, own, slot);
#pragma unroll
    for (int j = 1; j < row_segments; j++) total += __shfl_sync(0xffffffffu, own, slot + segment_slots * j);
#pragma unroll
    for (int offset = segment_slots / 2; offset; offset >>= 1) total += __shfl_xor_sync(0xffffffffu, total, offset);
    sum[i / Cols][i % Cols] = total;
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

// Two rows from `first_row` on of a matrix of `n_rows`, whose results begin at column `out_at`.
template <class B, int Cols>
__device__ __forceinline__ void matvec(const Planes& w, const Step& step, int first_row, int n_rows, int out_at) {
  const int lane = threadIdx.x, first_col = blockIdx.x * Cols;
  if (first_row >= n_rows) return wait_for_launch();

  // Behind the last row, the last one is multiplied again and not stored.
  const int own[Rows] = {first_row, ::min(first_row + 1, n_rows - 1)};
  float sum[Rows][Cols];
  products<B, Cols>(w, step.x, own, first_col, step.n_cols, step.n_batch, sum);
#pragma unroll
  for (int i = 0; i < Rows * Cols; i++) {
    const int row = first_row + i / Cols, col = first_col + i % Cols;
    if (lane != i || row >= n_rows || col >= step.n_batch) continue;
    float s = sum[i / Cols][i % Cols];
    if (step.bias) s += step.bias[out_at + row];
    if (step.residual) s += step.residual[size_t(col) * step.residual_stride + out_at + row];
    step.out[size_t(col) * step.out_stride + out_at + row] = s;
  }
}

// Where the results of a gate go as 8-bit integers; then rows are whole blocks of 32.
struct GatedQuants {
  uint32_t* quants;    // [n_batch, 32 * stride] bytes
  uint2* blocks;       // [n_batch, stride]
  int stride;
  uint32_t* counters;  // [groups of rows of activations, n_rows / 32], zero between launches; or null for none
};

// activation(gate * x + its bias) * (up * x + its bias). A warp has a row of the gate and the same row of the other half. The
// last block of those that share 32 results quantizes them.
template <class B, int Cols>
__device__ __forceinline__ void gated(
    const Planes& w, const Quantized& x, const Gate& gate, const GatedQuants& to, int n_cols, int n_batch) {
  constexpr int group = 32 / warps;  // blocks that share 32 results
  const int lane = threadIdx.x, first_col = blockIdx.x * Cols, row = blockIdx.y * warps + threadIdx.y;
  if (row < gate.n_rows) {
    const int own[Rows] = {gate.gate_row(row), gate.up_row(row)};
    float sum[Rows][Cols];
    products<B, Cols>(w, x, own, first_col, n_cols, n_batch, sum);
#pragma unroll
    for (int c = 0; c < Cols; c++) {
      const int col = first_col + c;
      if (lane == c && col < n_batch) gate.store(col, row, gate.result(row, sum[0][c], sum[1][c]));
    }
  } else {
    wait_for_launch();
  }
  if (!to.counters) return;

  // The other warps are done: what they stored is seen with what the first one says behind the barrier.
  __syncthreads();
  if (threadIdx.y != 0) return;
  const int block = blockIdx.y / group;
  bool is_last = false;
  if (lane == 0) {
    uint32_t* counter = to.counters + size_t(blockIdx.x) * (gate.n_rows / 32) + block;
    __threadfence();
    is_last = atomicInc(counter, group - 1) == group - 1;
    __threadfence();
  }
  if (!__shfl_sync(0xffffffffu, is_last, 0)) return;
  static_assert(Cols <= 4, "a warp has four results of each of four rows");
  const int col = first_col + lane / 8, at = 32 * block + lane % 8 * 4;
  const bool inside = lane / 8 < Cols && col < n_batch;
  float4 v = {};
  if (inside) v = __ldcg(reinterpret_cast<const float4*>(gate.out + size_t(col) * gate.out_stride + at));
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
        {main, high, head}, {quants, blocks, x_stride}, {bias, up_first != 0, act, out, out_stride, n_rows},           \
        {to_quants, to_blocks, to_stride, counters}, n_cols, n_batch);                                                 \
  }
