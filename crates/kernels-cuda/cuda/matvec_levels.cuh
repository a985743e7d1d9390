// Products of packed matrices of levels with rows of activations in BF16, as decode steps have them: a single row, or many.
//
// The columns of a matrix are cut into eight segments of whole steps of four units, whose length follows from the number of
// columns. Within a segment fragments are added in their order, then come the segments in theirs. This is the same for few
// rows, whose segments are divided between the warps of a block, and for many, where a warp goes through all of them: so are
// the bits.
#pragma once

#include "activations.cuh"
#include "levels.cuh"

namespace by_levels {

constexpr int n_segments = 8;
constexpr int few_threads = 32 * n_segments;
constexpr int tile_bytes = 96 * 1024;  // what a launch of tiles gives dynamic shared memory for

// Columns are taken in steps of eight units, whose blocks are whole; behind the last unit, activations are zeros.
constexpr int step_units = 8;

// Steps of a segment; the last segments may have fewer, or none.
__device__ __forceinline__ int segment_steps(int n_steps) { return (n_steps + n_segments - 1) / n_segments; }

// What a block of few rows shares: units on their way to fragments, then the sums of segments.
template <int MT, int NT>
union Segments {
  uint4 units[n_segments][MT][64];
  float sum[n_segments][8 * NT][16 * MT];

  __device__ __forceinline__ float total(int col, int row) const {
    float total = 0.0f;
#pragma unroll
    for (int s = 0; s < n_segments; s++) total += sum[s][col][row];
    return total;
  }
};

// Activations in memory: of each eight rows, a lane's pieces of the blocks of row `lane / 4`.
template <int NT>
struct InMemory {
  const uint4* of_row[NT];
  const uint2* sums_of_row[NT];

  __device__ __forceinline__ uint4 values(int n, int block) const { return of_row[n][block * 4]; }
  __device__ __forceinline__ uint2 sums(int n, int block) const { return sums_of_row[n][block]; }
  __device__ __forceinline__ void advance(int n_blocks) {
#pragma unroll
    for (int n = 0; n < NT; n++) of_row[n] += n_blocks * 4, sums_of_row[n] += n_blocks;
  }
};

// A block has 16 * MT rows of the matrix, `row_of(i)`, and 8 * NT of activations, a warp one segment: leaves its sums in `shared`.
// What is behind the last of `n_batch` rows is that of the last one.
template <class B, int MT, int NT, class R>
__device__ __forceinline__ void few(
    Segments<MT, NT>& shared, const Planes& w, const R& row_of, const Rounded& x, int n_cols, int n_batch) {
  using F = Fragment<B>;
  const int lane = threadIdx.x % 32, warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), g = lane / 4, c = lane % 4;
  const int n_units = n_cols / B::len, n_steps = (n_units + step_units - 1) / step_units, length = segment_steps(n_steps);
  const int start = warp * length, end = ::min(start + length, n_steps);

  // Offsets of a lane's units are the same in all steps: the base pointers advance.
  uint32_t row_at[MT][2];
#pragma unroll
  for (int i = 0; i < 2 * MT; i++) row_at[i / 2][i % 2] = uint32_t(row_of(8 * i + g)) * uint32_t(n_units);
  B unit[2][MT][2];
  auto load = [&](int part, int step) {
    if (step >= end) return;
    const Planes planes = w.after<B>(step);
    // In the place of what is behind the last unit, that one is multiplied by zeros.
    const int at = ::min(c + 4 * part, n_units - 1 - step_units * step);
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) unit[part][i / 2][i % 2].load(planes.at<B>(row_at[i / 2][i % 2]), at);
  };
  InMemory<NT> of_x;
#pragma unroll
  for (int n = 0; n < NT; n++) {
    const size_t at = size_t(::min(int(blockIdx.y) * 8 * NT + 8 * n + g, n_batch - 1)) * x.stride;
    of_x.of_row[n] = x.values + at * 4 + c;
    of_x.sums_of_row[n] = x.sums + at;
  }
  of_x.advance(2 * start * F::n_blocks);

  float sum[MT][NT][4];
#pragma unroll
  for (int i = 0; i < MT * NT * 4; i++) sum[i / 4 / NT][i / 4 % NT][i % 4] = 0.0f;
  load(0, start), load(1, start);
  wait_for_launch();
#pragma unroll 1
  for (int step = start; step < end; step++) {
#pragma unroll
    for (int part = 0; part < 2; part++) {
      F fragment[MT];
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 2 * MT; i++) {
        const B& own = unit[part][i / 2][i % 2];
        shared.units[warp][i / 2][F::place(8 * (i % 2) + g, c)] = {own.main.word[0], own.main.word[1], own.main.word[2],
                                                                   own.main.word[3]};
        fragment[i / 2].set(i % 2, own);
      }
      load(part, step + 1);
      __syncwarp();
#pragma unroll
      for (int m = 0; m < MT; m++) fragment[m].load_words(shared.units[warp][m]);
      multiply(fragment, of_x, sum);
      of_x.advance(F::n_blocks);
    }
  }

  __syncthreads();
#pragma unroll
  for (int m = 0; m < MT; m++)
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) shared.sum[warp][8 * n + 2 * c + i % 2][16 * m + 8 * (i / 2) + g] = sum[m][n][i];
  __syncthreads();
}

template <class B, int MT, int NT>
__device__ __forceinline__ void matvec(const Planes& w, const Rounded& x, int n_cols, const Ends& ends) {
  __shared__ Segments<MT, NT> shared;
  constexpr int rows = 16 * MT, cols = 8 * NT;
  const int first_row = blockIdx.x * rows, first_col = blockIdx.y * cols;
  // Behind the last row, the last one is multiplied again and not stored.
  const auto row_of = [&](int i) { return ::min(first_row + i, ends.n_rows - 1); };
  few<B, MT, NT>(shared, w, row_of, x, n_cols, ends.n_batch);
  for (int i = threadIdx.x; i < rows * cols; i += few_threads) {
    float sum[1][1] = {shared.total(i / rows, i % rows)};
    ends.store(sum, [&](int) { return first_col + i / rows; }, first_row + i % rows, [](int) { return 0; });
  }
}

// activation(gate * x + its bias) * (up * x + its bias), and `to`, where the results go for the product behind, or none; then
// they are whole blocks of 32. A block has 32 rows of both halves, and up to eight of activations.
template <class B>
__device__ __forceinline__ void gated(
    const Planes& w, const Rounded& x, const Gate& gate, const BlockRows& to, int n_cols, int n_batch) {
  __shared__ Segments<4, 1> shared;
  __shared__ float results[8][32];
  const int first_row = blockIdx.x * 32, first_col = blockIdx.y * 8, n_rows = gate.n_rows;
  // The gate's rows are the first ones here.
  const auto row_of = [&](int i) {
    const int row = ::min(first_row + i % 32, n_rows - 1);
    return i < 32 ? gate.gate_row(row) : gate.up_row(row);
  };
  few<B, 4, 1>(shared, w, row_of, x, n_cols, n_batch);
  static_assert(few_threads == 8 * 32, "a thread has a result");
  const int own_row = threadIdx.x % 32, own_col = threadIdx.x / 32, row = first_row + own_row, col = first_col + own_col;
  float result = 0.0f;
  if (row < n_rows && col < n_batch) {
    result = gate.result(row, shared.total(own_col, own_row), shared.total(own_col, 32 + own_row));
    gate.store(col, row, result);
  }
  if (!to.values) return;
  results[own_col][own_row] = result;
  __syncthreads();
  // Eight threads have a row; the last block has the zeros behind it, too.
  if (threadIdx.x >= 64) return;
  const int of_col = threadIdx.x / 8, at = threadIdx.x % 8 * 4;
  float4 v = *reinterpret_cast<const float4*>(&results[of_col][at]);
  const int end = first_row + 32 == n_rows ? to.reach(n_rows) : first_row + 32;
  for (int start = first_row; start < end; start += 32, v = {})
    to.store(first_col + of_col, v, start + at, first_col + of_col < n_batch);
}

// Many rows: a block has WT rows of the matrix and XT of activations, of which each of WW by WX warps has a part. Units and
// activations are copied to shared memory, some steps ahead.
template <class B, int WT, int XT, int WW, int WX>
struct Tile {
  using F = Fragment<B>;
  static constexpr int threads = 32 * WW * WX;
  static constexpr int MT = WT / WW / 16, NT = XT / WX / 8;  // fragments of a warp
  static constexpr int row_len = 4 * F::n_blocks;            // pieces of a row of activations

  struct Stage {
    uint4 w[WT * 4];
    uint4 x[XT * row_len];
    uint2 sums[B::has_min ? XT * F::n_blocks : 2];
  };
  static constexpr int fit = tile_bytes / int(sizeof(Stage)), stages = fit < 4 ? fit : 4;
  static_assert(stages >= 2, "a step is multiplied while the next one is copied");

  // Rows that are neighbours are in different banks where eight lanes read together.
  static __device__ __forceinline__ int place(int row, int piece) { return row * row_len + (piece ^ row % 2 * 4); }

  struct InStage {
    const Stage& stage;
    int row, c;  // of the lane

    __device__ __forceinline__ uint4 values(int n, int block) const { return stage.x[place(row + 8 * n, 4 * block + c)]; }
    __device__ __forceinline__ uint2 sums(int n, int block) const { return stage.sums[(row + 8 * n) * F::n_blocks + block]; }
  };

  static __device__ __forceinline__ void run(const Planes& w, const Rounded& x, int n_cols, const Ends& ends) {
    extern __shared__ __align__(128) uint4 dynamic[];
    Stage* const stage_at = reinterpret_cast<Stage*>(dynamic);
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, c = lane % 4;
    const int first_row = blockIdx.y * WT, first_x = blockIdx.x * XT;
    // A stage has half of a step.
    const int n_units = n_cols / B::len, n_stages = (n_units + 3) / 4;
    const int length = 2 * segment_steps((n_units + step_units - 1) / step_units);

    auto copy = [&](Stage& to, int at) {
      each_of_thread<WT * 4, threads>([&](int i) {
        const int row = i / 4, u = 4 * at + i % 4;
        const bool inside = u < n_units;
        const size_t from = size_t(::min(first_row + row, ends.n_rows - 1)) * n_units + (inside ? u : 0);
        copy16(&to.w[row / 16 * 64 + F::place(row % 16, i % 4)], w.main + from, inside);
      });
      each_of_thread<XT * row_len, threads>([&](int i) {
        const int row = first_x + i / row_len, piece = i % row_len;
        const bool inside = row < ends.n_batch;
        const size_t from = size_t(inside ? row : 0) * x.stride * 4 + at * row_len + piece;
        copy16(&to.x[place(i / row_len, piece)], x.values + from, inside);
      });
      if constexpr (B::has_min) {
        each_of_thread<XT * F::n_blocks, threads>([&](int i) {
          const int row = first_x + i / F::n_blocks;
          const bool inside = row < ends.n_batch;
          copy8(&to.sums[i], x.sums + (size_t(inside ? row : 0) * x.stride + at * F::n_blocks + i % F::n_blocks), inside);
        });
      }
    };
    const int w_row = warp % WW * (WT / WW), x_row = warp / WW * (XT / WX) + g;
    uint32_t row_at[MT][2];
#pragma unroll
    for (int i = 0; i < 2 * MT; i++)
      row_at[i / 2][i % 2] = uint32_t(::min(first_row + w_row + 8 * i + g, ends.n_rows - 1)) * uint32_t(n_units);
    // What units have beside their words goes to registers; what is behind the last one is loaded from in front of it, and
    // multiplied by zeros.
    B unit[MT][2];
    auto load_rest = [&](int at) {
#pragma unroll
      for (int i = 0; i < 2 * MT; i++)
        unit[i / 2][i % 2].load(w, row_at[i / 2][i % 2] + ::min(4 * at + c, n_units - 1));
    };

    float sum[MT][NT][4], total[MT][NT][4];
#pragma unroll
    for (int i = 0; i < MT * NT * 4; i++)
      sum[i / 4 / NT][i / 4 % NT][i % 4] = total[i / 4 / NT][i / 4 % NT][i % 4] = 0.0f;
    load_rest(0);
    wait_for_launch();
#pragma unroll
    for (int i = 0; i < stages - 1; i++) {
      if (i < n_stages) copy(stage_at[i], i);
      commit_copies();
    }
    for (int at = 0, stage = 0, to_go = length; at < n_stages; at++, stage = stage == stages - 1 ? 0 : stage + 1) {
      wait_for_copies<stages - 2>();
      __syncthreads();
      const int ahead = at + stages - 1;
      if (ahead < n_stages) copy(stage_at[stage == 0 ? stages - 1 : stage - 1], ahead);
      commit_copies();
      F fragment[MT];
#pragma unroll
      for (int m = 0; m < MT; m++) {
        fragment[m].set(0, unit[m][0]), fragment[m].set(1, unit[m][1]);
        fragment[m].load_words(stage_at[stage].w + (w_row / 16 + m) * 64);
      }
      load_rest(at + 1);
      multiply(fragment, InStage{stage_at[stage], x_row, c}, sum);
      if (--to_go > 0 && at + 1 < n_stages) continue;
      to_go = length;
#pragma unroll
      for (int i = 0; i < MT * NT * 4; i++) {
        total[i / 4 / NT][i / 4 % NT][i % 4] += sum[i / 4 / NT][i / 4 % NT][i % 4];
        sum[i / 4 / NT][i / 4 % NT][i % 4] = 0.0f;
      }
    }

#pragma unroll
    for (int n = 0; n < NT; n++) {
      float of[2][2 * MT];
#pragma unroll
      for (int i = 0; i < 4 * MT; i++) of[i % 2][i / 2] = total[i / 4][n][i % 4];
      const int first_col = first_x + x_row - g + 8 * n + 2 * c;
      ends.store(of, [&](int i) { return first_col + i; }, first_row + w_row + g, [](int i) { return 8 * i; });
    }
  }
};

}  // namespace by_levels

// values, sums: as `Rounded` has them, [n_batch, x_stride]; bias: [n_rows] or null, residual: [n_batch, n_rows] or null, out:
// [n_batch, n_rows].
#define MATVEC_LEVELS(TYPE, NAME, MT, NT, BLOCKS)                                                                      \
  extern "C" __global__ void __launch_bounds__(by_levels::few_threads, BLOCKS) matvec_levels_##NAME##_##MT##x##NT(      \
      const uint4* main, const uint8_t* high, const uint8_t* head, const uint4* values, const uint2* sums,             \
      int x_stride, const float* bias, const float* residual, int residual_stride, float* out, int out_stride,         \
      int n_rows, int n_cols, int n_batch) {                                                                           \
    by_levels::matvec<TYPE, MT, NT>({main, high, head}, {values, sums, x_stride}, n_cols,                              \
                                    {bias, residual, residual_stride, out, out_stride, n_rows, n_batch});              \
  }

#define GATED_LEVELS(TYPE, NAME)                                                                                       \
  extern "C" __global__ void __launch_bounds__(by_levels::few_threads, 1) gated_levels_##NAME(                          \
      const uint4* main, const uint8_t* high, const uint8_t* head, const uint4* values, const uint2* sums,             \
      int x_stride, const float* bias, int up_first, int act, float* out, int out_stride, uint32_t* to_values,         \
      uint2* to_heads, int to_stride, int to_bf16, int n_rows, int n_cols, int n_batch) {                              \
    by_levels::gated<TYPE>({main, high, head}, {values, sums, x_stride},                                               \
                           {bias, up_first != 0, act, out, out_stride, n_rows},                                        \
                           {to_values, to_heads, to_stride, to_bf16}, n_cols, n_batch);                                \
  }

#define MATMUL_LEVELS(TYPE, NAME, WT, XT, WW, WX)                                                                      \
  extern "C" __global__ void __launch_bounds__(32 * WW * WX, 1) matmul_levels_##NAME##_##WT(                         \
      const uint4* main, const uint8_t* high, const uint8_t* head, const uint4* values, const uint2* sums,             \
      int x_stride, const float* bias, const float* residual, int residual_stride, float* out, int out_stride,         \
      int n_rows, int n_cols, int n_batch) {                                                                           \
    by_levels::Tile<TYPE, WT, XT, WW, WX>::run({main, high, head}, {values, sums, x_stride}, n_cols,                   \
                                               {bias, residual, residual_stride, out, out_stride, n_rows, n_batch});   \
  }
