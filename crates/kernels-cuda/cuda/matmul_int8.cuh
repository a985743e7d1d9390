// Products of packed matrices of integer levels with many rows of 8-bit activations, on tensor cores.
//
// A block has a tile of activation rows and weight rows, and takes some columns at a time. Activations are copied as they
// are; levels become bytes on their way from registers, which hold the next columns already. Sums of integers are
// exact; what a block of 32 columns adds is rounded as in `matvec_int8.cuh`.
//
// For prompts, the blocks of a row are added in their order, so the bits of a sum do not depend on the size of the tile or
// the number of rows. For many rows of decode steps, each of eight warps has every eighth block of the columns, as eight lanes
// have in `matvec_int8.cuh`. It adds up the same segments of the columns, and warps are added in the same pairs: the bits are
// the same.
#pragma once

#include "blocks.cuh"
#include "quantized.cuh"
#include "spans.cuh"
#include "tiles.cuh"

namespace in_int8 {

// A tile of XT rows of activations by WT rows of weights, of which each of WX by WW warps has a part, and that many times
// WK warps share the blocks of 32 columns between them. A step has `depth` columns: small tiles take more of them, as
// there are fewer loads under way in a block.
template <class B, int XT, int WT, int WX, int WW, int WK = 1, int depth = 64>
struct Tile {
  static constexpr int threads = 32 * WX * WW * WK;
  static_assert(WK == 1 || (B::len <= 32 && depth == 32 * WK), "a unit belongs to a warp");
  static constexpr int MT = XT / WX / 16, NT = WT / WW / 8;  // fragments of a warp
  static constexpr int chunks = depth / 16;                  // 16 bytes each, of a row
  static constexpr int row_units = depth / B::len, n_units = WT * row_units;
  static constexpr int own_units = (n_units + threads - 1) / threads;
  // Units of 16 elements have the scale of their block of 32 in common.
  static constexpr int group = B::len == 16 ? 32 : B::group, n_groups = depth / group;

  struct Shared {
    uint4 x[2][XT * chunks];
    uint2 blocks[2][depth / 32][XT];
    uint4 w[WT * chunks];
    float scale[n_groups][WT];
    float min[B::has_min ? n_groups : 1][B::has_min ? WT : 1];
  };

  // Where a chunk of a row lies, so that those of neighbouring rows are in different banks.
  static __device__ __forceinline__ int place(int row, int chunk) {
    return row * chunks + (chunk ^ (chunks < 8 ? row / 2 % 4 : row % 8));
  }

  float sum[MT][NT][4];

  __device__ __forceinline__ void run(
      Shared& shared, const Planes& w, size_t first_row, int n_rows, const Quantized& x, const TileRows& rows,
      int n_cols) {
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const int n_row_units = n_cols / B::len, n_blocks = n_cols / 32;
    const size_t row_at = first_row * n_row_units;
    B unit[own_units];

    auto load_x = [&](int stage, int col) {
      each_of_thread<XT * chunks, threads>([&](int i) {
        const int row = i / chunks, chunk = i % chunks, block = col / 32 + chunk / 2;
        const bool inside = block < n_blocks;
        const uint32_t from = rows.source(row) * x.stride + (inside ? block : 0);
        copy16(&shared.x[stage][place(row, chunk)], x.quants + (size_t(from) * 2 + chunk % 2), inside);
        if (chunk % 2 == 0) copy8(&shared.blocks[stage][chunk / 2][row], x.blocks + from, inside);
      });
      commit_copies();
    };
    auto load_w = [&](int col) {
#pragma unroll
      for (int i = 0; i < own_units; i++) {
        const int at = thread + i * threads, row = at / row_units, u = col / B::len + at % row_units;
        if (n_units % threads != 0 && at >= n_units) break;
        // What is behind the end is loaded from in front of it, and not used.
        unit[i].load(w, row_at + uint32_t(::min(row, n_rows - 1) * n_row_units + ::min(u, n_row_units - 1)));
      }
    };
    auto store_w = [&](int col) {
#pragma unroll
      for (int i = 0; i < own_units; i++) {
        const int at = thread + i * threads, row = at / row_units, u = at % row_units;
        if (n_units % threads != 0 && at >= n_units) break;
        const bool inside = col / B::len + u < n_row_units;
#pragma unroll
        for (int c = 0; c < B::len / 16; c++) {
          uint4 chunk = {};
          if (inside)
            chunk = {level(unit[i], 4 * c), level(unit[i], 4 * c + 1), level(unit[i], 4 * c + 2),
                     level(unit[i], 4 * c + 3)};
          shared.w[place(row, u * (B::len / 16) + c)] = chunk;
        }
#pragma unroll
        for (int g = 0; g < B::len / group; g++) {
          shared.scale[u * (B::len / group) + g][row] = inside ? unit[i].scale(g) : 0.0f;
          if (B::has_min) shared.min[u * (B::len / group) + g][row] = inside ? unit[i].min(g) : 0.0f;
        }
        if (B::len == 16 && u % 2 == 0) shared.scale[u / 2][row] = inside ? unit[i].scale(0) : 0.0f;
      }
    };

#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
      for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) sum[m][n][i] = 0.0f;

    // Rows of fragments: for the lane's addresses, and of its results.
    const int first_x = warp / WW % WX * (XT / WX), first_w = warp % WW * (WT / WW);
    const int x_row = first_x + lane % 16, x_chunk = lane / 16;
    const int w_row = first_w + lane % 8 + lane / 16 * 8, w_chunk = lane / 8 % 2;
    load_x(0, 0);
    load_w(0);
    const int length = segment_groups(n_blocks);
    float total[WK > 1 ? MT : 1][WK > 1 ? NT : 1][4] = {};
    auto end_segment = [&] {
      if constexpr (WK > 1) {
#pragma unroll
        for (int i = 0; i < MT * NT * 4; i++) {
          total[i / 4 / NT][i / 4 % NT][i % 4] += sum[i / 4 / NT][i / 4 % NT][i % 4];
          sum[i / 4 / NT][i / 4 % NT][i % 4] = 0.0f;
        }
      }
    };
    for (int col = 0, stage = 0, to_go = length; col < n_cols; col += depth, stage ^= 1) {
      __syncthreads();
      store_w(col);
      wait_for_copies<0>();
      __syncthreads();
      if (col + depth < n_cols) {
        load_x(stage ^ 1, col + depth);
        load_w(col + depth);
      }
#pragma unroll 1
      for (int i = 0; i < depth / 32 / WK; i++) {
        const int k = WK == 1 ? i : warp / (WX * WW);
        uint32_t b[NT / 2][4];
#pragma unroll
        for (int n = 0; n < NT / 2; n++) load_matrices(b[n], &shared.w[place(w_row + 16 * n, 2 * k + w_chunk)]);
#pragma unroll
        for (int m = 0; m < MT; m++) {
          uint32_t a[4];
          load_matrices(a, &shared.x[stage][place(x_row + 16 * m, 2 * k + x_chunk)]);
          const uint2 blocks[2] = {shared.blocks[stage][k][first_x + 16 * m + lane / 4],
                                   shared.blocks[stage][k][first_x + 16 * m + lane / 4 + 8]};
#pragma unroll
          for (int n = 0; n < NT; n++)
            add(shared, k, first_w + 8 * n + lane % 4 * 2, a, b[n / 2] + n % 2 * 2, blocks, sum[m][n]);
        }
      }
      if (WK > 1 && --to_go == 0) end_segment(), to_go = length;
    }
    if constexpr (WK > 1) {
      end_segment();
#pragma unroll
      for (int i = 0; i < MT * NT * 4; i++)
        sum[i / 4 / NT][i / 4 % NT][i % 4] = total[i / 4 / NT][i / 4 % NT][i % 4];
    }
  }

  // Levels less the one that stands for zero, as signed bytes: the difference has bit 7 for a sign, which no byte borrows
  // from another.
  static __device__ __forceinline__ uint32_t level(const B& unit, int piece) {
    const uint32_t levels = unit.levels(piece);
    if (B::zero == 0) return levels;
    return ((levels | 0x80808080) - uint32_t(B::zero) * 0x01010101) ^ 0x80808080;
  }

  // Adds the products of a block of 32 columns to four results: of two rows of activations and two columns, which are
  // rows of weights from `column` on.
  static __device__ __forceinline__ void add(
      const Shared& shared, int k, int column, const uint32_t (&a)[4], const uint32_t* b, const uint2 (&blocks)[2],
      float (&sum)[4]) {
    // Loaded for each fragment, as there are no registers for those of a whole tile.
    auto pair = [&](const float* row) {
      float2 v;
      asm volatile("ld.volatile.shared.v2.f32 {%0, %1}, [%2];"
                   : "=f"(v.x), "=f"(v.y)
                   : "r"(shared_address(row + column))
                   : "memory");
      return v;
    };
    int product[4];
    float term[4];
    if (group == 32) {
      multiply_32(product, a, b[0], b[1]);
      const float2 scale = pair(shared.scale[k]);
#pragma unroll
      for (int i = 0; i < 4; i++) term[i] = (i % 2 ? scale.y : scale.x) * float_of_sum(product[i]);
      if (B::has_min) {
        const float2 min = pair(shared.min[k]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int quants = int(blocks[i / 2].y);
          term[i] = fmaf(-(i % 2 ? min.y : min.x), float((int(quants << 16) >> 16) + (quants >> 16)), term[i]);
        }
      }
    } else {
      multiply_16(product, a[0], a[1], b[0]);
      const float2 lower = pair(shared.scale[2 * k]), upper = pair(shared.scale[2 * k + 1]);
#pragma unroll
      for (int i = 0; i < 4; i++) term[i] = (i % 2 ? lower.y : lower.x) * float_of_sum(product[i]);
      multiply_16(product, a[2], a[3], b[1]);
#pragma unroll
      for (int i = 0; i < 4; i++) term[i] = fmaf(i % 2 ? upper.y : upper.x, float_of_sum(product[i]), term[i]);
      if (B::has_min) {
        const float2 least = pair(shared.min[2 * k]), last = pair(shared.min[2 * k + 1]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int quants = int(blocks[i / 2].y);
          term[i] = fmaf(-(i % 2 ? least.y : least.x), float(int(quants << 16) >> 16), term[i]);
          term[i] = fmaf(-(i % 2 ? last.y : last.x), float(quants >> 16), term[i]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) sum[i] = fmaf(__uint_as_float(blocks[i / 2].x), term[i], sum[i]);
  }

  // Adds up the sums of the warps that share columns, in pairs: those that are four apart, two, and one. The first has
  // the result.
  __device__ __forceinline__ void join(Shared& shared) {
    const int lane = threadIdx.x % 32, k = threadIdx.x / (32 * WX * WW), warp = threadIdx.x / 32 % (WX * WW);
    constexpr int n = MT * NT * 4;
    static_assert(WX * WW * WK / 2 * n * 32 * sizeof(float) <= sizeof(shared.x), "sums of half of the warps");
    float* room = reinterpret_cast<float*>(shared.x);
#pragma unroll
    for (int apart = WK / 2; apart; apart /= 2) {
      __syncthreads();
      float* at = room + (k % apart * WX * WW + warp) * n * 32 + lane;
#pragma unroll
      for (int i = 0; i < n; i++) {
        if (k >= apart && k < 2 * apart) at[32 * i] = sum[i / 4 / NT][i / 4 % NT][i % 4];
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < n; i++) {
        if (k < apart) sum[i / 4 / NT][i / 4 % NT][i % 4] += at[32 * i];
      }
    }
  }

  // Calls `f` with the rows of activations and of weights, as the tile counts them, and sums as `each_row` has them.
  template <class F>
  __device__ __forceinline__ void each(const F& f) const {
    const int warp = threadIdx.x / 32, first_w = warp % WW * (WT / WW);
    if (warp >= WX * WW) return;
    each_row(sum, warp / WW * (XT / WX), [&](int x_row, auto& of_row) { f(x_row, first_w + fragment_row(), of_row); });
  }
};

template <class B, int XT, int WT, int WX, int WW, int WK, int depth>
__device__ __forceinline__ void matmul(const Planes& w, Quantized x, int n_cols, const Ends& ends) {
  using Tile = Tile<B, XT, WT, WX, WW, WK, depth>;
  __shared__ typename Tile::Shared shared;
  const int first_x = blockIdx.x * XT, first_row = blockIdx.y * WT;
  const TileRows rows = {nullptr, ::min(XT, ends.n_batch - first_x)};
  x.quants += size_t(first_x) * x.stride * 2;
  x.blocks += size_t(first_x) * x.stride;
  Tile tile;
  tile.run(shared, w, first_row, ::min(WT, ends.n_rows - first_row), x, rows, n_cols);
  if constexpr (WK > 1) tile.join(shared);
  tile.each([&](int x_row, int w_row, auto& sum) {
    const int col = first_x + x_row;
    if (col >= ends.n_batch) return;
    ends.store(sum, [&](int) { return col; }, first_row + w_row, fragment_offset);
  });
}

}  // namespace in_int8

#define TILES_INT8(KERNEL, TYPE, XT, WT, WX, WW, WK, DEPTH)                                                        \
  extern "C" __global__ void __launch_bounds__(32 * WX * WW * WK, XT == 128 || WK > 1 ? 2 : 4) KERNEL(             \
      const uint4* main, const uint8_t* high, const uint8_t* head, const uint4* quants, const uint2* blocks,       \
      int x_stride, const float* bias, const float* residual, int residual_stride, float* out, int out_stride,     \
      int n_rows, int n_cols, int n_batch) {                                                                       \
    in_int8::matmul<TYPE, XT, WT, WX, WW, WK, DEPTH>(                                                              \
        {main, high, head}, {quants, blocks, x_stride}, n_cols,                                                    \
        {bias, residual, residual_stride, out, out_stride, n_rows, n_batch});                                      \
  }
