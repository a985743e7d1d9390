// Pairs of a row and an expert: their order, and the products of a few of them with F32 values.
#include "blocks.cuh"
#include "pairs.cuh"

constexpr int sort_threads = 1024;
constexpr int max_experts = 1024;
constexpr int n_counts = 8192;

// The sum over the threads before this one, and over all.
__device__ __forceinline__ uint32_t sum_before(uint32_t x, uint32_t (&of_warps)[32], uint32_t& all) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t sum = x;
  for (int offset = 1; offset < 32; offset <<= 1) {
    uint32_t before = __shfl_up_sync(0xffffffffu, sum, offset);
    if (lane >= offset) sum += before;
  }
  if (lane == 31) of_warps[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    uint32_t total = of_warps[lane];
    for (int offset = 1; offset < 32; offset <<= 1) {
      uint32_t before = __shfl_up_sync(0xffffffffu, total, offset);
      if (lane >= offset) total += before;
    }
    of_warps[lane] = total;
  }
  __syncthreads();
  all = of_warps[31];
  sum += warp ? of_warps[warp - 1] : 0;
  __syncthreads();
  return sum - x;
}

// Sorts the pairs of some rows by expert, in tiles of up to `tile_rows`; one block. Pairs of the expert -1 are left
// out. Some warps have a part of the pairs each: they count, and go through them again when the places are known.
extern "C" __global__ void __launch_bounds__(sort_threads) sort_by_expert(
    const float* routes, int route_stride, int n_pairs, int n_chosen, int n_experts, int tile_rows, uint4* tiles,
    uint32_t* order, int max_tiles) {
  __shared__ uint32_t counts[n_counts];  // [n_parts, n_experts], then the next places
  __shared__ uint32_t places[max_experts + 1], first_tiles[max_experts + 1], of_warps[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, e = threadIdx.x;
  const int n_parts = min(sort_threads / 32, n_counts / n_experts);
  const int part_len = ((n_pairs + n_parts - 1) / n_parts + 31) / 32 * 32;
  const int begin = warp < n_parts ? min(warp * part_len, n_pairs) : n_pairs;
  const int end = min(begin + part_len, n_pairs);
  uint32_t* own = counts + warp * n_experts;

  auto expert_of = [&](int pair) {
    const float id = routes[size_t(pair / n_chosen) * route_stride + pair % n_chosen];
    if (id < 0.0f) return 0xffffffffu;
    if (!(id < float(n_experts))) __trap();
    return uint32_t(id);
  };

  for (int i = threadIdx.x; i < n_parts * n_experts; i += sort_threads) counts[i] = 0;
  __syncthreads();
  for (int pair = begin + lane; pair < end; pair += 32) {
    const uint32_t expert = expert_of(pair);
    if (expert != 0xffffffffu) atomicAdd(own + expert, 1);
  }
  __syncthreads();

  // A thread has an expert: the places before its pairs, those of each part among them, and the tiles before its own.
  uint32_t total = 0, n_placed, n_tiles;
  if (e < n_experts) {
    for (int p = 0; p < n_parts; p++) total += counts[p * n_experts + e];
  }
  uint32_t place = sum_before(total, of_warps, n_placed);
  const uint32_t tile = sum_before((total + tile_rows - 1) / tile_rows, of_warps, n_tiles);
  if (e < n_experts) {
    places[e] = place, first_tiles[e] = tile;
    for (int p = 0; p < n_parts; p++) {
      const uint32_t n = counts[p * n_experts + e];
      counts[p * n_experts + e] = place;
      place += n;
    }
  }
  if (e == 0) places[n_experts] = n_placed, first_tiles[n_experts] = n_tiles;
  if (n_tiles > uint32_t(max_tiles)) __trap();
  __syncthreads();

  for (int start = begin; start < end; start += 32) {
    const int pair = start + lane;
    const uint32_t expert = pair < end ? expert_of(pair) : 0xffffffffu;
    // Lanes of one expert take places in their order.
    const uint32_t same = __match_any_sync(0xffffffffu, expert);
    const int rank = __popc(same & ((1u << lane) - 1));
    if (expert != 0xffffffffu) order[own[expert] + rank] = uint32_t(pair);
    __syncwarp();
    if (expert != 0xffffffffu && rank == 0) own[expert] += __popc(same);
    __syncwarp();
  }

  if (threadIdx.x == 0) tiles[0] = {n_tiles, 0, 0, 0};
  for (uint32_t t = threadIdx.x; t < n_tiles; t += sort_threads) {
    // The last expert whose tiles begin at or before this one has it.
    int low = 0, high = n_experts;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (first_tiles[middle] <= t) {
        low = middle;
      } else {
        high = middle;
      }
    }
    const uint32_t first = places[low] + (t - first_tiles[low]) * tile_rows;
    tiles[1 + t] = {uint32_t(low), first, min(uint32_t(tile_rows), places[low + 1] - first), 0};
  }
}

constexpr int warps = 4;

// What a launch multiplies: up to two matrices of one type, whose results lie one behind the other.
struct Step {
  const float* x;  // [n_rows, n_cols], or [n_rows, n_chosen * n_cols] with `n_own` columns for each expert of a row
  int x_stride;
  float* out;  // [n_rows, n_chosen * (n_outputs[0] + n_outputs[1])]
  int out_stride;
  int n_cols, n_own;
};

// A warp has `Rows` rows of an expert's matrix at a time, as in products with one matrix; the order of a sum depends on
// neither `Rows` nor `Cols` nor which pairs are multiplied together. out_at: the first column of the matrix's results.
template <class B, int Rows, int Cols>
__device__ __forceinline__ void matvec(
    const Planes& w, const Step& step, const Pairs& pairs, int first_row, int n_rows, int out_at) {
  const int lane = threadIdx.x;
  const int n_units = (step.n_cols + B::len - 1) / B::len;
  Group<Cols> group;
  if (first_row >= n_rows || !group.find(pairs, blockIdx.y)) return;

  // Behind the last row, the last one is computed again and not stored.
  size_t row_at[Rows];
  for (int r = 0; r < Rows; r++)
    row_at[r] = (size_t(group.expert) * n_rows + ::min(first_row + r, n_rows - 1)) * n_units;
  const float* row_x[Cols];
  for (int c = 0; c < Cols; c++) {
    const uint32_t row = group.pair[c] / pairs.n_chosen, slot = group.pair[c] % pairs.n_chosen;
    row_x[c] = step.x + size_t(row) * step.x_stride + size_t(slot) * step.n_own;
  }

  float sum[Rows][Cols] = {};
  for (int u = lane; u < n_units; u += 32) {
    B unit[Rows];
#pragma unroll
    for (int r = 0; r < Rows; r++) unit[r].load(w, row_at[r] + u);
#pragma unroll
    for (int g = 0; g < B::len / B::group; g++) {
      float dot[Rows][Cols] = {}, total[Cols] = {};
#pragma unroll
      for (int p = g * B::group / 4; p < (g + 1) * B::group / 4; p++) {
        float4 v[Cols];
#pragma unroll
        for (int c = 0; c < Cols; c++) {
          v[c] = row_piece<B::may_end>(row_x[c], u * B::len + 4 * p, step.n_cols);
          if (B::has_min) total[c] += (v[c].x + v[c].y) + (v[c].z + v[c].w);
        }
#pragma unroll
        for (int r = 0; r < Rows; r++) {
          float4 level = unit[r].piece(p);
#pragma unroll
          for (int c = 0; c < Cols; c++) {
            dot[r][c] = fmaf(level.x, v[c].x, dot[r][c]);
            dot[r][c] = fmaf(level.y, v[c].y, dot[r][c]);
            dot[r][c] = fmaf(level.z, v[c].z, dot[r][c]);
            dot[r][c] = fmaf(level.w, v[c].w, dot[r][c]);
          }
        }
      }
#pragma unroll
      for (int r = 0; r < Rows; r++) {
#pragma unroll
        for (int c = 0; c < Cols; c++) {
          sum[r][c] = fmaf(unit[r].scale(g), dot[r][c], sum[r][c]);
          if (B::has_min) sum[r][c] = fmaf(-unit[r].min(g), total[c], sum[r][c]);
        }
      }
    }
  }

#pragma unroll
  for (int r = 0; r < Rows; r++) {
#pragma unroll
    for (int c = 0; c < Cols; c++) {
      float s = sum[r][c];
      for (int offset = 16; offset; offset >>= 1) s += __shfl_xor_sync(0xffffffffu, s, offset);
      if (lane != r * Cols + c || first_row + r >= n_rows || c >= group.count) continue;
      const uint32_t row = group.pair[c] / pairs.n_chosen, slot = group.pair[c] % pairs.n_chosen;
      step.out[size_t(row) * step.out_stride + out_at + size_t(slot) * n_rows + first_row + r] = s;
    }
  }
}

// Blocks of a pair or a tile are those of the first matrix, then those of the second, which may have no rows.
#define MAKE_ONE(TYPE, NAME, ROWS, COLS)                                                                          \
  extern "C" __global__ void __launch_bounds__(32 * warps) expert_matvec_##NAME##_##COLS(                         \
      const uint4* main_0, const uint8_t* high_0, const uint8_t* head_0, const uint4* main_1,                     \
      const uint8_t* high_1, const uint8_t* head_1, int n_rows_0, int n_rows_1, const float* x, int x_stride,     \
      const float* routes, int route_stride, const uint4* tiles, const uint32_t* order, float* out,               \
      int out_stride, int n_cols, int n_own, int n_chosen, int n_experts) {                                       \
    const Step step = {x, x_stride, out, out_stride, n_cols, n_own};                                              \
    const Pairs pairs = {routes, route_stride, tiles, order, n_chosen, n_experts};                                \
    const int n_blocks = (n_rows_0 + warps * ROWS - 1) / (warps * ROWS);                                          \
    const bool second = blockIdx.x >= n_blocks;                                                                   \
    const int first_row = ((second ? blockIdx.x - n_blocks : blockIdx.x) * warps + threadIdx.y) * ROWS;           \
    const Planes w = {second ? main_1 : main_0, second ? high_1 : high_0, second ? head_1 : head_0};              \
    matvec<TYPE, ROWS, COLS>(w, step, pairs, first_row, second ? n_rows_1 : n_rows_0,                             \
                             second ? n_chosen * n_rows_0 : 0);                                                   \
  }
#define MAKE(TYPE, NAME)     \
  MAKE_ONE(TYPE, NAME, 4, 1) \
  MAKE_ONE(TYPE, NAME, 2, 4)

FOR_EACH_BLOCK_TYPE(MAKE)
