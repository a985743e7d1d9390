// Products of sorted pairs of rows and experts on tensor cores, as prompts need them: in half precision, and with 8-bit
// activations. The tiles are those of products with one matrix, whose rows come from where the pairs are.
#pragma once

#include "matmul_half.cuh"
#include "matmul_int8.cuh"
#include "pairs.cuh"

// The pairs of a tile, and where results go.
template <int XT>
struct ExpertTile {
  uint64_t target[XT];  // elements from the first result of the launch to that of the pair's row and expert
  uint32_t source[XT];  // as many of x
  uint32_t row[XT];

  // The tile of a block; false if there is none. All threads take part. n_own: elements of x for each expert of a row,
  // 0 where they share them; n_rows: those of an expert's matrix.
  __device__ __forceinline__ bool find(
      const Pairs& pairs, uint32_t index, int x_stride, int n_own, int out_stride, int n_rows, uint32_t& expert,
      TileRows& rows) {
    if (index >= pairs.tiles[0].x) return false;
    const uint4 tile = pairs.tiles[1 + index];
    if (tile.z > XT) __trap();
    expert = tile.x;
    rows = {source, int(tile.z)};
    for (uint32_t i = threadIdx.x; i < tile.z; i += blockDim.x) {
      const uint32_t pair = pairs.order[tile.y + i], slot = pair % pairs.n_chosen;
      row[i] = pair / pairs.n_chosen;
      target[i] = uint64_t(row[i]) * out_stride + uint64_t(slot) * n_rows;
      source[i] = row[i] * x_stride + slot * n_own;
    }
    __syncthreads();
    return true;
  }

  // Stores the results of a row of activations, as `each_row` has them.
  template <int n>
  __device__ __forceinline__ void store(
      const float (&sum)[1][n], float scale, float* out, int x_row, int row, int n_rows) const {
    float* to = out + (target[x_row] + row);
#pragma unroll
    for (int i = 0; i < n; i++) {
      if (fragment_offset(i) < n_rows - row) to[fragment_offset(i)] = scale * sum[0][i];
    }
  }
};

// x: rows of `x_stride` elements, less than 2^32 in all, scales: of these rows, or null.
template <class B, int XT, int WT, int WX, int WW>
__device__ __forceinline__ void expert_matmul_half(
    const Planes& w, const void* x, int x_stride, int n_own, const float* scales, const Pairs& pairs, float* out,
    int out_stride, int first_row, int n_rows, int n_cols) {
  using Tile = in_half::Tile<B, XT, WT, WX, WW>;
  __shared__ typename Tile::Shared shared;
  __shared__ ExpertTile<XT> of_pairs;
  uint32_t expert;
  TileRows rows;
  if (!of_pairs.find(pairs, blockIdx.y, x_stride, n_own, out_stride, n_rows, expert, rows)) return;
  Tile tile;
  tile.run(shared, w, size_t(expert) * n_rows + first_row, ::min(WT, n_rows - first_row),
           reinterpret_cast<const typename Tile::T*>(x), 1, rows, n_cols);
  tile.each([&](int x_row, int w_row, const auto& sum) {
    if (x_row >= rows.n) return;
    const float scale = scales ? scales[of_pairs.row[x_row]] : 1.0f;
    of_pairs.store(sum, scale, out, x_row, first_row + w_row, n_rows);
  });
}

template <class B, int XT, int WT, int WX, int WW>
__device__ __forceinline__ void expert_matmul_int8(
    const Planes& w, Quantized x, int n_own, const Pairs& pairs, float* out, int out_stride, int first_row,
    int n_rows, int n_cols) {
  using Tile = in_int8::Tile<B, XT, WT, WX, WW, 1>;
  __shared__ typename Tile::Shared shared;
  __shared__ ExpertTile<XT> of_pairs;
  uint32_t expert;
  TileRows rows;
  if (!of_pairs.find(pairs, blockIdx.y, x.stride, n_own, out_stride, n_rows, expert, rows)) return;
  x.stride = 1;
  Tile tile;
  tile.run(shared, w, size_t(expert) * n_rows + first_row, ::min(WT, n_rows - first_row), x, rows, n_cols);
  tile.each([&](int x_row, int w_row, const auto& sum) {
    if (x_row < rows.n) of_pairs.store(sum, 1.0f, out, x_row, first_row + w_row, n_rows);
  });
}

// Blocks of a tile are those of the first matrix, then those of the second, which may have no rows.
#define EXPERT_MATMUL_HALF(TYPE, NAME, XT, WT, WX, WW)                                                            \
  extern "C" __global__ void __launch_bounds__(32 * WX * WW, XT == 64 ? 2 : 3 ) expert_matmul_half_##NAME##_##XT( \
      const uint4* main_0, const uint8_t* high_0, const uint8_t* head_0, const uint4* main_1,                     \
      const uint8_t* high_1, const uint8_t* head_1, int n_rows_0, int n_rows_1, const void* x, int x_stride,      \
      const float* scales, const uint4* tiles, const uint32_t* order, float* out, int out_stride, int n_cols,     \
      int n_own, int n_chosen) {                                                                                  \
    const Pairs pairs = {nullptr, 0, tiles, order, n_chosen, 0};                                                  \
    const int n_blocks = (n_rows_0 + WT - 1) / WT;                                                                \
    const bool second = blockIdx.x >= n_blocks;                                                                   \
    const int first_row = (second ? blockIdx.x - n_blocks : blockIdx.x) * WT;                                     \
    const Planes w = {second ? main_1 : main_0, second ? high_1 : high_0, second ? head_1 : head_0};              \
    expert_matmul_half<TYPE, XT, WT, WX, WW>(w, x, x_stride, n_own, scales, pairs,                                \
                                             out + (second ? n_chosen * n_rows_0 : 0), out_stride, first_row,     \
                                             second ? n_rows_1 : n_rows_0, n_cols);                               \
  }

#define EXPERT_MATMUL_INT8(TYPE, NAME, XT, WT, WX, WW)                                                            \
  extern "C" __global__ void __launch_bounds__(32 * WX * WW, XT == 64 ? 2 : 3 ) expert_matmul_int8_##NAME##_##XT( \
      const uint4* main_0, const uint8_t* high_0, const uint8_t* head_0, const uint4* main_1,                     \
      const uint8_t* high_1, const uint8_t* head_1, int n_rows_0, int n_rows_1, const uint4* quants,              \
      const uint2* blocks, int x_stride, const uint4* tiles, const uint32_t* order, float* out, int out_stride,   \
      int n_cols, int n_own, int n_chosen) {                                                                      \
    const Pairs pairs = {nullptr, 0, tiles, order, n_chosen, 0};                                                  \
    const int n_blocks = (n_rows_0 + WT - 1) / WT;                                                                \
    const bool second = blockIdx.x >= n_blocks;                                                                   \
    const int first_row = (second ? blockIdx.x - n_blocks : blockIdx.x) * WT;                                     \
    const Planes w = {second ? main_1 : main_0, second ? high_1 : high_0, second ? head_1 : head_0};              \
    expert_matmul_int8<TYPE, XT, WT, WX, WW>(w, {quants, blocks, x_stride}, n_own, pairs,                         \
                                             out + (second ? n_chosen * n_rows_0 : 0), out_stride, first_row,     \
                                             second ? n_rows_1 : n_rows_0, n_cols);                               \
  }
