// Products of packed matrices with many rows of F32 activations, in F32: for weights of F32, and for all types where
// nothing may be rounded but sums.
//
// A block has a tile of 64 activation rows and 64 weight rows, a thread four by four of them. The columns of a sum
// are added in their order, so its bits do not depend on the number of rows.
#pragma once

#include "blocks.cuh"
#include "tiles.cuh"

namespace in_f32 {

constexpr int side = 64;      // rows of a tile, of both kinds
constexpr int depth = 64;     // columns of a step
constexpr int pitch = depth + 4;  // neighbouring rows are in different banks
constexpr int threads = 256;

struct Shared {
  float x[side][pitch];
  float w[side][pitch];
};

__device__ __forceinline__ float4& four(float* at) { return *reinterpret_cast<float4*>(at); }

template <class B>
struct Tile {
  static constexpr int row_units = depth / B::len, n_units = side * row_units;
  static constexpr int own_units = (n_units + threads - 1) / threads;
  float sum[4][4];  // of rows of activations and of weights, 16 apart

  __device__ __forceinline__ void run(
      Shared& shared, const Planes& w, size_t first_row, int n_rows, const float* x, int x_stride, const TileRows& rows,
      int n_cols) {
    const int thread = threadIdx.x;
    const int n_row_units = (n_cols + B::len - 1) / B::len;
    B unit[own_units];
    float4 value[side * depth / 4 / threads];
    auto load = [&](int col) {
#pragma unroll
      for (int i = 0; i < side * depth / 4 / threads; i++) {
        const int at = thread + i * threads, row = at / (depth / 4), k = col + at % (depth / 4) * 4;
        value[i] = row_piece<true>(x + rows.source(row) * x_stride, k, n_cols);
      }
#pragma unroll
      for (int i = 0; i < own_units; i++) {
        const int at = thread + i * threads, row = at / row_units, u = col / B::len + at % row_units;
        if (n_units % threads != 0 && at >= n_units) break;
        // What is behind the end is loaded from in front of it, and not used.
        unit[i].load(w, (first_row + ::min(row, n_rows - 1)) * n_row_units + ::min(u, n_row_units - 1));
      }
    };
    auto store = [&](int col) {
#pragma unroll
      for (int i = 0; i < side * depth / 4 / threads; i++) {
        const int at = thread + i * threads;
        four(&shared.x[at / (depth / 4)][at % (depth / 4) * 4]) = value[i];
      }
#pragma unroll
      for (int i = 0; i < own_units; i++) {
        const int at = thread + i * threads, row = at / row_units, u = at % row_units;
        if (n_units % threads != 0 && at >= n_units) break;
        const bool inside = col / B::len + u < n_row_units;
#pragma unroll
        for (int p = 0; p < B::len / 4; p++) {
          float4 v = {};
          if (inside) {
            const float scale = unit[i].scale(4 * p / B::group), min = unit[i].min(4 * p / B::group);
            v = unit[i].piece(p);
            v = {scale * v.x - min, scale * v.y - min, scale * v.z - min, scale * v.w - min};
          }
          four(&shared.w[row][u * B::len + 4 * p]) = v;
        }
      }
    };
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) sum[i][j] = 0.0f;
    const int x_row = thread / 16, w_row = thread % 16;
    load(0);
    for (int col = 0; col < n_cols; col += depth) {
      __syncthreads();
      store(col);
      __syncthreads();
      if (col + depth < n_cols) load(col + depth);
#pragma unroll 2
      for (int k = 0; k < depth; k += 4) {
        float4 a[4], b[4];
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = four(&shared.x[x_row + 16 * i][k]), b[i] = four(&shared.w[w_row + 16 * i][k]);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
          for (int j = 0; j < 4; j++) {
            sum[i][j] = fmaf(a[i].x, b[j].x, sum[i][j]);
            sum[i][j] = fmaf(a[i].y, b[j].y, sum[i][j]);
            sum[i][j] = fmaf(a[i].z, b[j].z, sum[i][j]);
            sum[i][j] = fmaf(a[i].w, b[j].w, sum[i][j]);
          }
      }
    }
  }
};

// x: [n_batch, n_cols].
template <class B>
__device__ __forceinline__ void matmul(const Planes& w, const float* x, int x_stride, int n_cols, const Ends& ends) {
  __shared__ Shared shared;
  const int first_x = blockIdx.x * side, first_row = blockIdx.y * side;
  const TileRows rows = {nullptr, ::min(side, ends.n_batch - first_x)};
  Tile<B> tile;
  tile.run(shared, w, first_row, ::min(side, ends.n_rows - first_row), x + size_t(first_x) * x_stride, x_stride, rows,
           n_cols);
  const int col = first_x + threadIdx.x / 16, row = first_row + threadIdx.x % 16;
  const auto sixteen = [](int i) { return 16 * i; };
  ends.store(tile.sum, [&](int i) { return col + 16 * i; }, row, sixteen);
}

}  // namespace in_f32

#define MATMUL_F32(TYPE, NAME)                                                                                        \
  extern "C" __global__ void __launch_bounds__(in_f32::threads, 2) matmul_f32_##NAME(                                   \
      const uint4* main, const uint8_t* high, const uint8_t* head, const float* x, int x_stride,                \
      const float* bias, const float* residual, int residual_stride, float* out, int out_stride, int n_rows,    \
      int n_cols, int n_batch) {                                                                                \
    in_f32::matmul<TYPE>({main, high, head}, x, x_stride, n_cols,                                               \
                         {bias, residual, residual_stride, out, out_stride, n_rows, n_batch});                  \
  }
