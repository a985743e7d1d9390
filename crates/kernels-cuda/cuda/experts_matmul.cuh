// Products of sorted pairs of rows and experts with F32 values, as prompts need them.
//
// A block has a tile of up to 64 pairs of one expert and 128 rows of its matrix. The columns come 32 at a time: packed
// weights and rows are on their way to registers while what came before is multiplied from shared memory, where weights
// lie as floats. An element is one sum over the columns in their order, whatever tile its pair is in.
#pragma once

#include "blocks.cuh"
#include "pairs.cuh"

namespace experts_in_f32 {

constexpr int threads = 128;
constexpr int tile_rows = 128;  // of a matrix
constexpr int tile_pairs = 64;
constexpr int depth = 32;  // columns at a time

// What a launch multiplies: up to two matrices of one type, whose results lie one behind the other.
struct Step {
  const float* x;  // [n_rows, n_cols], or [n_rows, n_chosen * n_cols] with `n_own` columns for each expert of a row
  int x_stride;
  float* out;  // [n_rows, n_chosen * (n_outputs[0] + n_outputs[1])]
  int out_stride;
  int n_cols, n_own;
};

// The columns of a row of weights that a thread takes at once: some units, or half of one.
template <class B>
struct Slice {
  static constexpr int n_units = B::len < depth ? depth / B::len : 1;
  static constexpr int per_unit = B::len < depth ? B::len : depth;
  B unit[n_units];

  __device__ __forceinline__ void load(const Planes& w, size_t row_at, int first_col, int units_of_row) {
#pragma unroll
    for (int i = 0; i < n_units; i++) {
      // What is behind the end is loaded from in front of it, and not used.
      const int u = first_col / B::len + i;
      unit[i].load(w, row_at + (B::may_end ? ::min(u, units_of_row - 1) : u));
    }
  }

  // As floats, each to the next line of `to`; what is behind the row's end is zero.
  __device__ __forceinline__ void store(float* to, int first_col, int units_of_row) const {
    const int half = B::len > depth ? first_col / depth % (B::len / depth) : 0;
#pragma unroll
    for (int i = 0; i < n_units; i++) {
      const bool inside = !B::may_end || first_col / B::len + i < units_of_row;
#pragma unroll
      for (int p = 0; p < per_unit / 4; p++) {
        const int piece = half * (depth / 4) + p;
        const float scale = unit[i].scale(piece * 4 / B::group), min = unit[i].min(piece * 4 / B::group);
        float4 v = unit[i].piece(piece);
        v = {fmaf(scale, v.x, -min), fmaf(scale, v.y, -min), fmaf(scale, v.z, -min), fmaf(scale, v.w, -min)};
        if (!inside) v = {};
        float* line = to + (i * per_unit + 4 * p) * tile_rows;
        line[0] = v.x, line[tile_rows] = v.y, line[2 * tile_rows] = v.z, line[3 * tile_rows] = v.w;
      }
    }
  }
};

__device__ __forceinline__ void fma_row(float (&sum)[8], float x, const float4& a, const float4& b) {
  sum[0] = fmaf(a.x, x, sum[0]), sum[1] = fmaf(a.y, x, sum[1]);
  sum[2] = fmaf(a.z, x, sum[2]), sum[3] = fmaf(a.w, x, sum[3]);
  sum[4] = fmaf(b.x, x, sum[4]), sum[5] = fmaf(b.y, x, sum[5]);
  sum[6] = fmaf(b.z, x, sum[6]), sum[7] = fmaf(b.w, x, sum[7]);
}

template <class B>
__device__ __forceinline__ void matmul(
    const Planes& w, const Step& step, const Pairs& pairs, int first_row, int n_rows, int out_at) {
  __shared__ __align__(16) float weights[depth][tile_rows], values[depth][tile_pairs];
  __shared__ uint32_t of_tile[tile_pairs];
  if (blockIdx.y >= pairs.tiles[0].x) return;
  const uint4 tile = pairs.tiles[1 + blockIdx.y];
  const int n_pairs = int(tile.z), n_cols = step.n_cols;
  const int units_of_row = (n_cols + B::len - 1) / B::len;

  // A thread brings a row of the matrix, and half of the columns of a pair's row; behind the last one, that again.
  const int last = n_rows - 1;
  const size_t row_at = (size_t(tile.x) * n_rows + ::min(first_row + int(threadIdx.x), last)) * units_of_row;
  const int own = threadIdx.x % tile_pairs, x_half = threadIdx.x / tile_pairs * (depth / 2);
  const uint32_t own_pair = pairs.order[tile.y + ::min(own, n_pairs - 1)];
  if (threadIdx.x < tile_pairs) of_tile[own] = own_pair;
  const float* x = step.x + size_t(own_pair / pairs.n_chosen) * step.x_stride +
                   size_t(own_pair % pairs.n_chosen) * step.n_own;

  Slice<B> slice;
  float4 brought[4];
  auto bring = [&](int first_col) {
    slice.load(w, row_at, first_col, units_of_row);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int col = first_col + x_half + 4 * i;
      brought[i] = float4{};
      if (!B::may_end || col < n_cols) brought[i] = row_piece<B::may_end>(x, col, n_cols);
    }
  };

  // A thread multiplies eight rows of the matrix with eight pairs, four and four of each; of the latter the second four
  // only where there are as many.
  const int at_row = threadIdx.x % 16 * 4, at_pair = threadIdx.x / 16 * 4;
  const bool is_full = n_pairs > tile_pairs / 2;
  float sum[8][8] = {};
  bring(0);
  for (int first_col = 0; first_col < n_cols; first_col += depth) {
    __syncthreads();
    slice.store(&weights[0][threadIdx.x], first_col, units_of_row);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float* line = &values[x_half + 4 * i][own];
      line[0] = brought[i].x, line[tile_pairs] = brought[i].y;
      line[2 * tile_pairs] = brought[i].z, line[3 * tile_pairs] = brought[i].w;
    }
    __syncthreads();
    if (first_col + depth < n_cols) bring(first_col + depth);
#pragma unroll 4
    for (int k = 0; k < depth; k++) {
      const float4 a = *reinterpret_cast<const float4*>(&weights[k][at_row]);
      const float4 b = *reinterpret_cast<const float4*>(&weights[k][at_row + tile_rows / 2]);
      const float4 u = *reinterpret_cast<const float4*>(&values[k][at_pair]);
      fma_row(sum[0], u.x, a, b), fma_row(sum[1], u.y, a, b), fma_row(sum[2], u.z, a, b), fma_row(sum[3], u.w, a, b);
      if (!is_full) continue;
      const float4 v = *reinterpret_cast<const float4*>(&values[k][at_pair + tile_pairs / 2]);
      fma_row(sum[4], v.x, a, b), fma_row(sum[5], v.y, a, b), fma_row(sum[6], v.z, a, b), fma_row(sum[7], v.w, a, b);
    }
  }

#pragma unroll
  for (int j = 0; j < 8; j++) {
    const int in_tile = at_pair + j % 4 + j / 4 * (tile_pairs / 2);
    if (in_tile >= n_pairs) continue;
    const uint32_t row = of_tile[in_tile] / pairs.n_chosen, slot = of_tile[in_tile] % pairs.n_chosen;
    float* to = step.out + size_t(row) * step.out_stride + out_at + size_t(slot) * n_rows;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int output = first_row + at_row + i % 4 + i / 4 * (tile_rows / 2);
      if (output < n_rows) to[output] = sum[j][i];
    }
  }
}

}  // namespace experts_in_f32

// Blocks of a tile are those of the first matrix, then those of the second, which may have no rows.
#define EXPERT_MATMUL(TYPE, NAME)                                                                                 \
  extern "C" __global__ void __launch_bounds__(128) expert_matmul_##NAME(                                         \
      const uint4* main_0, const uint8_t* high_0, const uint8_t* head_0, const uint4* main_1,                     \
      const uint8_t* high_1, const uint8_t* head_1, int n_rows_0, int n_rows_1, const float* x, int x_stride,     \
      const float* routes, int route_stride, const uint4* tiles, const uint32_t* order, float* out,               \
      int out_stride, int n_cols, int n_own, int n_chosen, int n_experts) {                                       \
    using namespace experts_in_f32;                                                                               \
    const Step step = {x, x_stride, out, out_stride, n_cols, n_own};                                              \
    const Pairs pairs = {routes, route_stride, tiles, order, n_chosen, n_experts};                                \
    const int n_blocks = (n_rows_0 + tile_rows - 1) / tile_rows;                                                  \
    const bool second = blockIdx.x >= n_blocks;                                                                   \
    const int first_row = (second ? blockIdx.x - n_blocks : blockIdx.x) * tile_rows;                              \
    const Planes w = {second ? main_1 : main_0, second ? high_1 : high_0, second ? head_1 : head_0};              \
    matmul<TYPE>(w, step, pairs, first_row, second ? n_rows_1 : n_rows_0, second ? n_chosen * n_rows_0 : 0);      \
  }
