// Products of packed matrices with many rows of activations on tensor cores, in half precision: F16 weights with F16
// activations, all others with both in BF16. Sums are F32.
//
// A block has a tile of activation rows and weight rows, and takes some columns at a time. Activations are copied as they
// are; weights are unpacked on their way from registers, which hold the next columns already. The columns of a
// sum are added in their order, so its bits do not depend on the size of the tile or the number of rows.
#pragma once

#include "blocks.cuh"
#include "halves.cuh"
#include "tiles.cuh"

namespace in_half {

// What weights of a type are multiplied in, and whether that is how they lie in memory.
template <class B>
struct Half {
  using T = __nv_bfloat16;
  static constexpr bool as_is = false;
};

template <>
struct Half<F16> {
  using T = __half;
  static constexpr bool as_is = true;
};

template <>
struct Half<BF16> {
  using T = __nv_bfloat16;
  static constexpr bool as_is = true;
};

// A tile of XT rows of activations by WT rows of weights, of which each of WX by WW warps has a part. A step has `depth`
// columns: small tiles take more of them, as there are fewer loads under way in a block.
template <class B, int XT, int WT, int WX, int WW, int depth = 64>
struct Tile {
  using T = typename Half<B>::T;
  static constexpr int threads = 32 * WX * WW;
  static constexpr int MT = XT / WX / 16, NT = WT / WW / 8;  // fragments of a warp
  static constexpr int chunks = depth / 8;                   // 16 bytes each, of a row
  static constexpr int row_units = depth / B::len, n_units = WT * row_units;
  static constexpr int own_units = (n_units + threads - 1) / threads;

  // Chunk `c` of row `r` lies at `c ^ r % 8`, so that chunks of neighbouring rows are in different banks.
  struct Shared {
    uint4 x[2][XT * chunks];
    uint4 w[WT * chunks];
  };

  static __device__ __forceinline__ int place(int row, int chunk) { return row * chunks + (chunk ^ row % 8); }

  float sum[MT][NT][4];

  // x: rows of `x_stride` elements, zeros behind column `n_cols` up to a multiple of `half_padding`.
  __device__ __forceinline__ void run(
      Shared& shared, const Planes& w, size_t first_row, int n_rows, const T* x, int x_stride, const TileRows& rows,
      int n_cols) {
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const int n_row_units = (n_cols + B::len - 1) / B::len;
    B unit[own_units];

    auto load_x = [&](int stage, int col) {
      each_of_thread<XT * chunks, threads>([&](int i) {
        const int row = i / chunks, chunk = i % chunks;
        const int at = col + 8 * chunk;
        const bool inside = at < n_cols;
        copy16(&shared.x[stage][place(row, chunk)], x + uint32_t(rows.source(row) * x_stride + (inside ? at : 0)), inside);
      });
      commit_copies();
    };
    auto load_w = [&](int col) {
#pragma unroll
      for (int i = 0; i < own_units; i++) {
        const int at = thread + i * threads, row = at / row_units, u = col / B::len + at % row_units;
        if (n_units % threads != 0 && at >= n_units) break;
        // What is behind the end is loaded from in front of it, and not used.
        unit[i].load(w, (first_row + ::min(row, n_rows - 1)) * n_row_units + ::min(u, n_row_units - 1));
      }
    };
    auto store_w = [&](int col) {
#pragma unroll
      for (int i = 0; i < own_units; i++) {
        const int at = thread + i * threads, row = at / row_units, u = at % row_units;
        if (n_units % threads != 0 && at >= n_units) break;
        const bool inside = col / B::len + u < n_row_units;
#pragma unroll
        for (int c = 0; c < B::len / 8; c++) {
          uint4 chunk = {};
          if (inside) chunk = unpack(unit[i], c);
          shared.w[place(row, u * (B::len / 8) + c)] = chunk;
        }
      }
    };

#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
      for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) sum[m][n][i] = 0.0f;

    // Rows of fragments for the lane's addresses.
    const int x_row = warp / WW * (XT / WX) + lane % 16, x_chunk = lane / 16;
    const int w_row = warp % WW * (WT / WW) + lane % 8 + lane / 16 * 8, w_chunk = lane / 8 % 2;
    load_x(0, 0);
    load_w(0);
    for (int col = 0, stage = 0; col < n_cols; col += depth, stage ^= 1) {
      __syncthreads();
      store_w(col);
      wait_for_copies<0>();
      __syncthreads();
      if (col + depth < n_cols) {
        load_x(stage ^ 1, col + depth);
        load_w(col + depth);
      }
      // All at once would take more registers than there are.
#pragma unroll 2
      for (int k = 0; k < depth / 16; k++) {
        uint32_t b[NT / 2][4];
#pragma unroll
        for (int n = 0; n < NT / 2; n++) load_matrices(b[n], &shared.w[place(w_row + 16 * n, 2 * k + w_chunk)]);
#pragma unroll
        for (int m = 0; m < MT; m++) {
          uint32_t a[4];
          load_matrices(a, &shared.x[stage][place(x_row + 16 * m, 2 * k + x_chunk)]);
#pragma unroll
          for (int n = 0; n < NT; n++) mma<T>(sum[m][n], a, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        }
      }
    }
  }

  // Eight elements of a unit.
  static __device__ __forceinline__ uint4 unpack(const B& unit, int chunk) {
    if constexpr (Half<B>::as_is) {
      return {unit.main.word[0], unit.main.word[1], unit.main.word[2], unit.main.word[3]};
    } else {
      uint32_t word[4];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const float4 v = weights(unit, 2 * chunk + i);
        word[2 * i] = pack2<T>(v.x, v.y);
        word[2 * i + 1] = pack2<T>(v.z, v.w);
      }
      return {word[0], word[1], word[2], word[3]};
    }
  }

  // Calls `f` with the rows of activations and of weights, as the tile counts them, and sums as `each_row` has them.
  template <class F>
  __device__ __forceinline__ void each(const F& f) const {
    const int warp = threadIdx.x / 32, first_w = warp % WW * (WT / WW);
    each_row(sum, warp / WW * (XT / WX), [&](int x_row, auto& of_row) { f(x_row, first_w + fragment_row(), of_row); });
  }
};

// x: [n_batch, x_stride], scales: of rows of x, [n_batch] or null.
template <class B, int XT, int WT, int WX, int WW, int depth>
__device__ __forceinline__ void matmul(
    const Planes& w, const void* x, int x_stride, const float* scales, int n_cols, const Ends& ends) {
  using Tile = Tile<B, XT, WT, WX, WW, depth>;
  __shared__ typename Tile::Shared shared;
  const int first_x = blockIdx.x * XT, first_row = blockIdx.y * WT;
  const TileRows rows = {nullptr, ::min(XT, ends.n_batch - first_x)};
  Tile tile;
  tile.run(shared, w, first_row, ::min(WT, ends.n_rows - first_row),
           reinterpret_cast<const typename Tile::T*>(x) + size_t(first_x) * x_stride, x_stride, rows, n_cols);
  tile.each([&](int x_row, int w_row, auto& sum) {
    const int col = first_x + x_row;
    if (col >= ends.n_batch) return;
    if (scales) {
      const float scale = scales[col];
#pragma unroll
      for (float& one : sum[0]) one *= scale;
    }
    ends.store(sum, [&](int) { return col; }, first_row + w_row, fragment_offset);
  });
}

}  // namespace in_half

#define MATMUL_HALF(TYPE, NAME, XT, WT, WX, WW, DEPTH)                                                       \
  extern "C" __global__ void __launch_bounds__(32 * WX * WW, XT == 128 ? 2 : 4) matmul_half_##NAME##_##XT(   \
      const uint4* main, const uint8_t* high, const uint8_t* head, const void* x, int x_stride,              \
      const float* scales, const float* bias, const float* residual, int residual_stride, float* out,        \
      int out_stride, int n_rows, int n_cols, int n_batch) {                                                 \
    in_half::matmul<TYPE, XT, WT, WX, WW, DEPTH>(                                                            \
        {main, high, head}, x, x_stride, scales, n_cols,                                                     \
        {bias, residual, residual_stride, out, out_stride, n_rows, n_batch});                                \
  }
