// Products of matrices of floats with the rows of decode steps on tensor cores, for few rows and for many.
//
// A row of activations is two columns of a product: two parts of BF16, whose sum has 16 bits of a float. Weights are BF16,
// or exactly the sum of two parts (F16), or exact in BF16 but for the scale of their block (F8_0). Sums are F32.
//
// The columns of a matrix are cut into eight segments of whole chunks, whose length follows from the number of columns.
// Within a segment fragments are added in their order, those with a scale by themselves; then come the two parts of a
// row, and the segments in their order. Four lanes of a fragment have neighbouring units of a row, and a step of the
// instruction has four elements of each, so that fragments are what a lane loads. All of this is the same for few rows,
// whose segments are divided between the warps of a block, and for many, where a warp goes through all of them: so are
// the bits.
#pragma once

#include "blocks.cuh"
#include "parts.cuh"
#include "tiles.cuh"

namespace in_parts {

constexpr int n_segments = 8;
constexpr int chunk = 64;  // columns

// Chunks of a segment; the last segments may have fewer, or none.
__device__ __forceinline__ int segment_chunks(int n_chunks) { return (n_chunks + n_segments - 1) / n_segments; }

// What types say: the parts of a weight, and whether what is multiplied still lacks a scale.
template <class B>
struct Of {
  static constexpr int n_parts = 1;
  static constexpr bool is_scaled = false;
};
template <>
struct Of<F16> {
  static constexpr int n_parts = 2;
  static constexpr bool is_scaled = false;
};
template <>
struct Of<F8_0> {
  static constexpr int n_parts = 1;
  static constexpr bool is_scaled = true;
};

// The weights of 16 rows and the columns of four lanes as fragments: a lane has a unit of row `lane / 4` and one of the
// eighth row behind it.
template <class B>
struct Weights {
  static constexpr int columns = 4 * B::len, n_pairs = B::len / 2, n_parts = Of<B>::n_parts;
  uint32_t word[n_parts][2][n_pairs];
  float scale[2];

  __device__ __forceinline__ void set(int half, const B& unit) {
    scale[half] = unit.scale(0);
#pragma unroll
    for (int p = 0; p < B::len / 4; p++) {
      const float4 v = unit.piece(p);
#pragma unroll
      for (int part = 0; part < n_parts; part++) {
        word[part][half][2 * p] = in_parts::part(v.x, v.y, part);
        word[part][half][2 * p + 1] = in_parts::part(v.z, v.w, part);
      }
    }
  }

  // Adds products with eight columns of parts, of which a lane has the pairs of column `lane / 4` that belong to its units.
  __device__ __forceinline__ void add(float (&sum)[4], const uint32_t (&x)[n_pairs]) const {
    float product[4] = {};
#pragma unroll
    for (int j = 0; j < n_pairs; j += 2) {
#pragma unroll
      for (int part = 0; part < n_parts; part++) {
        const uint32_t a[4] = {word[part][0][j], word[part][1][j], word[part][0][j + 1], word[part][1][j + 1]};
        mma<__nv_bfloat16>(Of<B>::is_scaled ? product : sum, a, x[j], x[j + 1]);
      }
    }
    // With a scale, both parts go to the first one's sum.
#pragma unroll
    for (int half = 0; half < 2; half++) {
      if (Of<B>::is_scaled) {
        sum[2 * half] = fmaf(scale[half], product[2 * half] + product[2 * half + 1], sum[2 * half]);
      }
    }
  }
};

// Few rows: a block has 16 * MT rows of the matrix and 4 * NT of activations, a warp one segment. Activations are split
// on their way to registers.
template <class B, int MT, int NT>
__device__ __forceinline__ void few(const Planes& w, const float* x, int x_stride, int n_cols, const Ends& ends) {
  using W = Weights<B>;
  constexpr int steps = chunk / W::columns, rows = 16 * MT, cols = 4 * NT;
  __shared__ float of_segments[n_segments][cols][rows];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int first_row = blockIdx.x * rows, first_col = blockIdx.y * cols;
  const int n_units = (n_cols + B::len - 1) / B::len, n_chunks = (n_cols + chunk - 1) / chunk;
  const int length = segment_chunks(n_chunks), end = ::min((warp + 1) * length, n_chunks);

  float sum[MT][NT][4];
#pragma unroll
  for (int i = 0; i < MT * NT * 4; i++) sum[i / 4 / NT][i / 4 % NT][i % 4] = 0.0f;
  // Behind the last row, the last one is multiplied again and not stored; behind the last column there are zeros.
  B unit[steps][MT][2];
  auto load = [&](B (&to)[steps][MT][2], int at) {
#pragma unroll
    for (int i = 0; i < steps * MT * 2; i++) {
      B& of = to[i / 2 / MT][i / 2 % MT][i % 2];
      const int row = ::min(first_row + i / 2 % MT * 16 + i % 2 * 8 + g, ends.n_rows - 1);
      const int u = (at * steps + i / 2 / MT) * 4 + c;
      if (u < n_units) {
        of.load(w, size_t(row) * n_units + u);
      } else {
        of = B{};
      }
    }
  };
  if (warp * length < end) load(unit, warp * length);
  wait_for_launch();
  for (int at = warp * length; at < end; at++) {
    B next[steps][MT][2];
    load(next, ::min(at + 1, end - 1));
#pragma unroll
    for (int s = 0; s < steps; s++) {
      W weights[MT];
#pragma unroll
      for (int m = 0; m < MT; m++) weights[m].set(0, unit[s][m][0]), weights[m].set(1, unit[s][m][1]);
#pragma unroll
      for (int n = 0; n < NT; n++) {
        uint32_t parts[W::n_pairs] = {};
        const int col = first_col + 4 * n + g / 2;
        if (col < ends.n_batch) {
#pragma unroll
          for (int p = 0; p < B::len / 4; p++) {
            const int k = at * chunk + s * W::columns + c * B::len + 4 * p;
            const float4 v = row_piece<true>(x + size_t(col) * x_stride, k, n_cols);
            parts[2 * p] = part(v.x, v.y, g % 2), parts[2 * p + 1] = part(v.z, v.w, g % 2);
          }
        }
#pragma unroll
        for (int m = 0; m < MT; m++) weights[m].add(sum[m][n], parts);
      }
    }
#pragma unroll
    for (int i = 0; i < steps * MT * 2; i++) unit[i / 2 / MT][i / 2 % MT][i % 2] = next[i / 2 / MT][i / 2 % MT][i % 2];
  }

#pragma unroll
  for (int m = 0; m < MT; m++)
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int half = 0; half < 2; half++)
        of_segments[warp][4 * n + c][16 * m + 8 * half + g] = sum[m][n][2 * half] + sum[m][n][2 * half + 1];
  __syncthreads();
  for (int i = threadIdx.x; i < rows * cols; i += 32 * n_segments) {
    float total = 0.0f;
#pragma unroll
    for (int s = 0; s < n_segments; s++) total += of_segments[s][i / rows][i % rows];
    float sum[1][1] = {total};
    ends.store(sum, [&](int) { return first_col + i / rows; }, first_row + i % rows, [](int) { return 0; });
  }
}

// Many rows: a block has WT rows of the matrix and XT / 2 of activations, of which each of WW by WX warps has a part.
// Units and parts are copied to shared memory, some steps ahead.
template <class B, int WT, int XT, int WW, int WX, int stages>
struct Tile {
  using W = Weights<B>;
  static constexpr int threads = 32 * WW * WX;
  static constexpr int MT = WT / WW / 16, NT = XT / WX / 8;  // fragments of a warp
  static constexpr int chunks = W::columns / 8;              // 16 bytes each, of a row of parts; weights have four

  struct Shared {
    uint4 w[stages][WT * 4];
    uint4 x[stages][XT * chunks];
  };

  // Where eight lanes read together, rows that are neighbours are in different banks.
  static __device__ __forceinline__ int place(int row, int c) { return row * chunks + (chunks == 8 ? c ^ row % 2 : c); }

  // x: rows of parts, `x_stride` elements apart, with zeros behind column `n_cols` up to a whole chunk.
  static __device__ __forceinline__ void run(const Planes& w, const uint16_t* x, int x_stride, int n_cols, const Ends& ends) {
    __shared__ Shared shared;
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, c = lane % 4;
    const int first_row = blockIdx.y * WT, first_x = blockIdx.x * XT;
    const int n_units = (n_cols + B::len - 1) / B::len, n_chunks = (n_cols + chunk - 1) / chunk;
    const int n_steps = n_chunks * (chunk / W::columns);
    const int length = segment_chunks(n_chunks) * (chunk / W::columns);

    auto copy = [&](int stage, int step) {
      each_of_thread<WT * 4, threads>([&](int i) {
        const int row = ::min(first_row + i / 4, ends.n_rows - 1), u = step * 4 + i % 4;
        const bool inside = u < n_units;
        copy16(&shared.w[stage][i], w.main + size_t(row) * n_units + (inside ? u : 0), inside);
      });
      each_of_thread<XT * chunks, threads>([&](int i) {
        const int row = i / chunks, at = i % chunks;
        const bool inside = first_x + row < 2 * ends.n_batch;
        copy16(&shared.x[stage][place(row, at)],
               x + size_t(inside ? first_x + row : 0) * x_stride + step * W::columns + 8 * at, inside);
      });
    };

    float sum[MT][NT][4], total[MT][NT][2];
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
      for (int n = 0; n < NT; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) sum[m][n][i] = 0.0f;
        total[m][n][0] = total[m][n][1] = 0.0f;
      }
    const int w_row = warp % WW * (WT / WW) + g, x_row = warp / WW * (XT / WX) + g;
    float scale[MT][2];
    auto load_scales = [&](int step) {
#pragma unroll
      for (int i = 0; i < MT * 2; i++) {
        const int row = ::min(first_row + w_row + 8 * i, ends.n_rows - 1);
        scale[i / 2][i % 2] = reinterpret_cast<const float*>(w.head)[(size_t(row) * n_units) / 4 + step];
      }
    };
    if (Of<B>::is_scaled) load_scales(0);
#pragma unroll
    for (int i = 0; i < stages - 1; i++) {
      if (i < n_steps) copy(i, i);
      commit_copies();
    }
    for (int step = 0, stage = 0, to_go = length; step < n_steps; step++, stage = stage == stages - 1 ? 0 : stage + 1) {
      wait_for_copies<stages - 2>();
      __syncthreads();
      const int ahead = step + stages - 1;
      if (ahead < n_steps) copy(stage == 0 ? stages - 1 : stage - 1, ahead);
      commit_copies();
      W weights[MT];
#pragma unroll
      for (int i = 0; i < MT * 2; i++) {
        B unit;
        const uint4 word = shared.w[stage][(w_row + 8 * i) * 4 + c];
        unit.main.word[0] = word.x, unit.main.word[1] = word.y, unit.main.word[2] = word.z, unit.main.word[3] = word.w;
        if constexpr (Of<B>::is_scaled) unit.d = scale[i / 2][i % 2];
        weights[i / 2].set(i % 2, unit);
      }
      if (Of<B>::is_scaled && step + 1 < n_steps) load_scales(step + 1);
#pragma unroll
      for (int n = 0; n < NT; n++) {
        uint32_t parts[W::n_pairs];
#pragma unroll
        for (int i = 0; i < chunks / 4; i++) {
          const uint4 word = shared.x[stage][place(x_row + 8 * n, chunks / 4 * c + i)];
          parts[4 * i] = word.x, parts[4 * i + 1] = word.y, parts[4 * i + 2] = word.z, parts[4 * i + 3] = word.w;
        }
#pragma unroll
        for (int m = 0; m < MT; m++) weights[m].add(sum[m][n], parts);
      }
      if (--to_go > 0 && step + 1 < n_steps) continue;
      to_go = length;
#pragma unroll
      for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
          for (int half = 0; half < 2; half++) {
            total[m][n][half] += sum[m][n][2 * half] + sum[m][n][2 * half + 1];
            sum[m][n][2 * half] = sum[m][n][2 * half + 1] = 0.0f;
          }
    }

#pragma unroll
    for (int n = 0; n < NT; n++) {
      float of_col[1][2 * MT];
#pragma unroll
      for (int i = 0; i < 2 * MT; i++) of_col[0][i] = total[i / 2][n][i % 2];
      const int col = (first_x + x_row - g) / 2 + 4 * n + c;
      ends.store(of_col, [&](int) { return col; }, first_row + w_row, [](int i) { return 8 * i; });
    }
  }
};

}  // namespace in_parts

// x: [n_batch, n_cols], bias: [n_rows] or null, residual: [n_batch, n_rows] or null, out: [n_batch, n_rows].
#define MATVEC_PARTS(TYPE, NAME, MT, NT)                                                                              \
  extern "C" __global__ void __launch_bounds__(32 * in_parts::n_segments, 2) matvec_parts_##NAME##_##MT##x##NT(        \
      const uint4* main, const uint8_t* high, const uint8_t* head, const float* x, int x_stride, const float* bias,   \
      const float* residual, int residual_stride, float* out, int out_stride, int n_rows, int n_cols, int n_batch) {  \
    in_parts::few<TYPE, MT, NT>({main, high, head}, x, x_stride, n_cols,                                              \
                                {bias, residual, residual_stride, out, out_stride, n_rows, n_batch});                 \
  }

// The same with x as parts: [2 * n_batch, n_cols].
#define MATMUL_PARTS(TYPE, NAME, WT, XT, WW, WX, STAGES, BLOCKS)                                                      \
  extern "C" __global__ void __launch_bounds__(32 * WW * WX, BLOCKS) matmul_parts_##NAME##_##WT##x##XT(                \
      const uint4* main, const uint8_t* high, const uint8_t* head, const uint16_t* x, int x_stride, const float* bias, \
      const float* residual, int residual_stride, float* out, int out_stride, int n_rows, int n_cols, int n_batch) {  \
    in_parts::Tile<TYPE, WT, XT, WW, WX, STAGES>::run(                                                                \
        {main, high, head}, x, x_stride, n_cols,                                                                      \
        {bias, residual, residual_stride, out, out_stride, n_rows, n_batch});                                         \
  }

// WX: warps along the activations of the larger tiles; the others are the steps in flight, and one more, that shared memory
// has room for.
#define PARTS_PRODUCTS(TYPE, NAME, WX, SMALLEST, SMALL, MIDDLE, LARGE) \
  MATVEC_PARTS(TYPE, NAME, 1, 1)                                       \
  MATVEC_PARTS(TYPE, NAME, 2, 1)                                       \
  MATVEC_PARTS(TYPE, NAME, 2, 2)                                       \
  MATMUL_PARTS(TYPE, NAME, 32, 64, 1, 4, SMALLEST, 2)                  \
  MATMUL_PARTS(TYPE, NAME, 64, 64, 2, 2, SMALL, 2)                     \
  MATMUL_PARTS(TYPE, NAME, 64, 128, 2, WX, MIDDLE, 2)                  \
  MATMUL_PARTS(TYPE, NAME, 128, 128, 4, WX, LARGE, 1)
