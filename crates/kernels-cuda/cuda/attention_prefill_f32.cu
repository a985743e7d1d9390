// Attention of prompts in F32 arithmetic: a block has 32 queries, rows of a tile times the query heads that share a
// head of keys and values, and goes over tiles of 32 positions, which begin at multiples of 32, with a running maximum
// and sum for each query (Dao et al., 2022, "FlashAttention").
//
// Eight threads share two queries: each scores four positions of a tile for both, then adds up eight of every 64
// columns. A query that sees nothing of a tile is left as it was, so a row's bits depend on neither its block nor the
// other rows.
#include "pages.cuh"

constexpr int threads = 128;
constexpr int block_queries = 32;
constexpr int tile_len = 32;
constexpr int piece = 64;          // columns in shared memory
constexpr int pitch = piece + 4;   // from row to row there
constexpr int weight_pitch = tile_len + 4;

struct Job {
  const float* q;
  int q_stride;
  int n_heads;
  float scale, softcap;
  const float* sinks;
  float* out;
  int out_stride;
  const uint32_t* tiles;  // [n_tiles, 2]: first row and number of rows
  int n_tiles, n_parts;   // blocks of a tile and a head of keys
  int type;
};

// Dim: columns of a head, filled up to a multiple of 64.
template <int Dim>
__device__ __forceinline__ void prefill(
    const void* k_pages, const void* v_pages, const Pages& pages, const Tables& tables, const Job& job) {
  constexpr int pieces = Dim / piece;
  __shared__ __align__(16) float queries[block_queries][pitch];
  __shared__ __align__(16) float elements[tile_len][pitch];
  __shared__ __align__(16) float weights[block_queries][weight_pitch];
  __shared__ uint32_t tile_pages[tile_len / 16];

  const int own = threadIdx.x % 8, line = threadIdx.x / 8;
  const int group = job.n_heads / pages.n_kv_heads, head_dim = pages.head_dim, row_len = pages.row_len(job.type);
  const int kv_head = blockIdx.x / job.n_parts, part = blockIdx.x % job.n_parts;
  const int tile = job.n_tiles - 1 - int(blockIdx.y);
  const uint32_t first_row = job.tiles[2 * tile], n_rows = job.tiles[2 * tile + 1];
  const int n_queries = int(n_rows) * group, query_base = part * block_queries;
  if (query_base >= n_queries) return;
  const int last_query = min(query_base + block_queries, n_queries) - 1;
  const Seen block_first = tables.seen(first_row + query_base / group);
  const Seen block_last = tables.seen(first_row + last_query / group);

  int first[2], end[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int index = min(query_base + 2 * line + r, last_query);
    const Seen seen = tables.seen(first_row + index / group);
    first[r] = seen.first, end[r] = seen.end;
  }

  float result[2][pieces][8] = {};
  float peak[2] = {-INFINITY, -INFINITY}, total[2] = {};
  const int from = block_first.first / tile_len;
  const int to = block_first.first < block_last.end ? (block_last.end + tile_len - 1) / tile_len : 0;
  for (int t = from; t < to; t++) {
    const int base = t * tile_len;
    __syncthreads();
    if (threadIdx.x < tile_len / 16) {
      const int position = base + 16 * int(threadIdx.x);
      if (position < block_last.end && position + 16 > block_first.first)
        tile_pages[threadIdx.x] = tables.page(block_last, position, pages.page_shift);
    }

    // Elements of the tile, 64 columns of all its positions; zeros where no row of the block sees them.
    auto load_tile = [&](const void* values, int p) {
#pragma unroll
      for (int i = 0; i < tile_len * piece / 8 / threads; i++) {
        const int in_tile = line + i * (threads / 8), position = base + in_tile, column = piece * p + 8 * own;
        float x[8] = {};
        if (position >= block_first.first && position < block_last.end && column < row_len) {
          const int in_page = position & ((1 << pages.page_shift) - 1);
          load_elements(values, pages, tile_pages[in_tile / 16], kv_head, in_page, column, job.type, x);
        }
        float4* place = reinterpret_cast<float4*>(&elements[in_tile][8 * own]);
        place[0] = {x[0], x[1], x[2], x[3]}, place[1] = {x[4], x[5], x[6], x[7]};
      }
    };

    // Scores of positions `own`, `own + 8`, `own + 16` and `own + 24`.
    float score[2][4] = {};
    for (int p = 0; p < pieces && piece * p < head_dim; p++) {
      __syncthreads();
      load_tile(k_pages, p);
      for (int i = threadIdx.x; i < block_queries * piece; i += threads) {
        const int index = query_base + i / piece, column = piece * p + i % piece;
        float x = 0.0f;
        if (index <= last_query && column < head_dim) {
          const int row = first_row + index / group, head = kv_head * group + index % group;
          x = job.q[size_t(row) * job.q_stride + head * head_dim + column] * job.scale;
        }
        queries[i / piece][i % piece] = x;
      }
      __syncthreads();
#pragma unroll 2
      for (int i = 0; i < piece; i += 4) {
        const float4 a = *reinterpret_cast<const float4*>(&queries[2 * line][i]);
        const float4 b = *reinterpret_cast<const float4*>(&queries[2 * line + 1][i]);
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const float4 k = *reinterpret_cast<const float4*>(&elements[own + 8 * j][i]);
          score[0][j] = fmaf(a.w, k.w, fmaf(a.z, k.z, fmaf(a.y, k.y, fmaf(a.x, k.x, score[0][j]))));
          score[1][j] = fmaf(b.w, k.w, fmaf(b.z, k.z, fmaf(b.y, k.y, fmaf(b.x, k.x, score[1][j]))));
        }
      }
    }

    // Weights.
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float largest = peak[r];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        float& s = score[r][j];
        if (job.softcap > 0.0f) s = job.softcap * tanhf(s / job.softcap);
        const int position = base + own + 8 * j;
        if (position < first[r] || position >= end[r]) s = -INFINITY;
        largest = fmaxf(largest, s);
      }
      for (int offset = 4; offset; offset >>= 1) {
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
      }
      const float zero = largest == -INFINITY ? 0.0f : largest;
      const float keep = expf(peak[r] - zero);
      peak[r] = largest;
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float weight = expf(score[r][j] - zero);
        weights[2 * line + r][own + 8 * j] = weight;
        sum += weight;
      }
      total[r] = fmaf(total[r], keep, sum);
      // The sum of a product that underflows and zero is zero without a sign.
#pragma unroll
      for (int p = 0; p < pieces; p++) {
#pragma unroll
        for (int i = 0; i < 8; i++) result[r][p][i] = fmaf(result[r][p][i], keep, 0.0f);
      }
    }

    // Values; where some rows do not see all, values that are not finite must not meet weights of zero.
    const bool whole = base >= block_last.first && base + tile_len <= block_first.end;
#pragma unroll
    for (int p = 0; p < pieces; p++) {
      if (piece * p >= head_dim) break;
      __syncthreads();
      load_tile(v_pages, p);
      __syncthreads();
#pragma unroll 2
      for (int i = 0; i < tile_len; i++) {
        const float4* place = reinterpret_cast<const float4*>(&elements[i][8 * own]);
        const float4 low = place[0], high = place[1];
        const float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const float weight = weights[2 * line + r][i];
          if (whole || (base + i >= first[r] && base + i < end[r])) {
#pragma unroll
            for (int j = 0; j < 8; j++) result[r][p][j] = fmaf(weight, v[j], result[r][p][j]);
          }
        }
      }
    }
  }

#pragma unroll
  for (int r = 0; r < 2; r++) {
    float sum = total[r];
    for (int offset = 4; offset; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    const int index = query_base + 2 * line + r;
    if (index > last_query) continue;
    const int row = first_row + index / group, head = kv_head * group + index % group;
    float keep = 1.0f;
    if (job.sinks) {
      const float sink = job.sinks[head], largest = fmaxf(peak[r], sink);
      keep = expf(peak[r] - largest);
      sum = fmaf(sum, keep, expf(sink - largest));
    }
    const float last = first[r] >= end[r] ? 0.0f : keep / sum;
    float* place = job.out + size_t(row) * job.out_stride + head * head_dim;
#pragma unroll
    for (int p = 0; p < pieces; p++) {
#pragma unroll
      for (int j = 0; j < 8; j++) {
        const int column = piece * p + 8 * own + j;
        if (column < head_dim) place[column] = result[r][p][j] * last;
      }
    }
  }
}

#define MAKE(DIM, BLOCKS)                                                                                             \
  extern "C" __global__ void __launch_bounds__(threads, BLOCKS) attention_prefill_##DIM(                                    \
      const float* q, int q_stride, const void* k_pages, const void* v_pages, int n_pages, int n_kv_heads,            \
      int page_shift, int head_dim, const uint32_t* words, const uint32_t* positions, const uint32_t* seq_of_row,     \
      const uint32_t* bases, const uint32_t* reaches, int n_words, int n_seqs, int window, int n_heads, float scale,  \
      float softcap, const float* sinks, float* out, int out_stride, const uint32_t* tiles, int n_tiles, int n_parts, \
      int type) {                                                                                                     \
    prefill<DIM>(k_pages, v_pages, {n_pages, n_kv_heads, page_shift, head_dim},                                       \
                 {words, positions, seq_of_row, bases, reaches, n_words, n_seqs, window},                             \
                 {q, q_stride, n_heads, scale, softcap, sinks, out, out_stride, tiles, n_tiles, n_parts, type});      \
  }

MAKE(64, 4)
MAKE(128, 3)
MAKE(256, 3)
MAKE(512, 2)
MAKE(576, 2)
