// Attention of decode steps over keys and values in pages.
//
// A context is cut into splits of 256 positions from its start; a block computes one split for the query heads that
// share a head of keys, and a second kernel adds the splits of a head in order. So a result's bits depend on its own
// context alone.
#include "pages.cuh"

constexpr int split_len = 256;
constexpr int max_head_dim = 512;
constexpr int threads = 128;

// One split of a row for `Heads` query heads at most: exponentials of the scores less their peak, times values.
// sums: [n_rows, n_heads, n_splits, head_dim], stats: [n_rows, n_heads, n_splits] of peak and sum of exponentials.
template <class T, int Heads>
__device__ __forceinline__ void attend(
    const float* q, int q_stride, const T* k_pages, const T* v_pages, const Pages& pages, const Tables& tables,
    int n_heads, float scale, float softcap, float* sums, float2* stats) {
  __shared__ __align__(16) float query[Heads][max_head_dim];
  __shared__ float score[Heads][split_len];
  __shared__ float part[threads][8];
  const int n_splits = gridDim.z, row = blockIdx.y;
  const int group = n_heads / pages.n_kv_heads, n_parts = (group + Heads - 1) / Heads;
  const int kv_head = blockIdx.x / n_parts, in_group = blockIdx.x % n_parts * Heads;
  const int heads = min(Heads, group - in_group), first_head = kv_head * group + in_group;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int n_chunks = pages.row_len() / 8;

  const Seen seen = tables.seen(row);
  if (seen.first >= seen.end) return;
  const int first_split = seen.first / split_len, split = first_split + int(blockIdx.z);
  if ((seen.end - 1) / split_len - first_split >= n_splits) __trap();
  const int start = max(split * split_len, seen.first), end = min((split + 1) * split_len, seen.end);
  if (start >= end) return;
  const int count = end - start;

  for (int i = threadIdx.x; i < Heads * n_chunks * 8; i += threads) {
    const int h = i / (n_chunks * 8), column = i % (n_chunks * 8);
    const bool exists = h < heads && column < pages.head_dim;
    query[h][column] = exists ? q[size_t(row) * q_stride + (first_head + h) * pages.head_dim + column] : 0.0f;
  }
  __syncthreads();

  const int in_page = (1 << pages.page_shift) - 1;

  // Scores: eight lanes for a position, sixteen positions at a time. Behind the end the last one is taken again.
  for (int base = 0; base < count; base += 16) {
    const int i = base + warp * 4 + lane / 8, position = start + min(i, count - 1);
    const size_t at = pages.at(tables.page(seen, position, pages.page_shift), kv_head, position & in_page);
    float dot[Heads] = {};
    for (int c = lane % 8; c < n_chunks; c += 8) {
      float key[8];
      load8(k_pages + at + c * 8, key);
#pragma unroll
      for (int h = 0; h < Heads; h++) {
        float x[8];
        load8(&query[h][c * 8], x);
#pragma unroll
        for (int j = 0; j < 8; j++) dot[h] = fmaf(x[j], key[j], dot[h]);
      }
    }
#pragma unroll
    for (int h = 0; h < Heads; h++) {
      for (int offset = 4; offset; offset >>= 1) dot[h] += __shfl_xor_sync(0xffffffffu, dot[h], offset);
      if (lane % 8 == 0 && i < count) {
        float s = dot[h] * scale;
        score[h][i] = softcap > 0.0f ? softcap * tanhf(s / softcap) : s;
      }
    }
  }
  __syncthreads();

  // Exponentials: a warp for each head.
  for (int h = warp; h < heads; h += threads / 32) {
    float peak = -INFINITY;
    for (int i = lane; i < count; i += 32) peak = fmaxf(peak, score[h][i]);
    for (int offset = 16; offset; offset >>= 1) peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, offset));
    float sum = 0.0f;
    for (int i = lane; i < count; i += 32) {
      float e = expf(score[h][i] - peak);
      score[h][i] = e;
      sum += e;
    }
    for (int offset = 16; offset; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (lane == 0) stats[(size_t(row) * n_heads + first_head + h) * n_splits + blockIdx.z] = {peak, sum};
  }
  __syncthreads();

  // Values: a thread has eight columns and every `n_lines`-th position; then lines are added in order.
  const int n_lines = threads / n_chunks, line = threadIdx.x / n_chunks, chunk = threadIdx.x % n_chunks;
  float sum[Heads][8] = {};
  if (line < n_lines) {
    for (int i = line; i < count; i += n_lines) {
      const int position = start + i;
      const size_t at = pages.at(tables.page(seen, position, pages.page_shift), kv_head, position & in_page);
      float value[8];
      load8(v_pages + at + chunk * 8, value);
#pragma unroll
      for (int h = 0; h < Heads; h++) {
        const float weight = h < heads ? score[h][i] : 0.0f;
#pragma unroll
        for (int j = 0; j < 8; j++) sum[h][j] = fmaf(weight, value[j], sum[h][j]);
      }
    }
  }
#pragma unroll
  for (int h = 0; h < Heads; h++) {
    if (h >= heads) break;
#pragma unroll
    for (int j = 0; j < 8; j++) part[threadIdx.x][j] = sum[h][j];
    __syncthreads();
    float* to = sums + ((size_t(row) * n_heads + first_head + h) * n_splits + blockIdx.z) * pages.head_dim;
    for (int column = threadIdx.x; column < pages.head_dim; column += threads) {
      float all = 0.0f;
      for (int l = 0; l < n_lines; l++) all += part[l * n_chunks + column / 8][column % 8];
      to[column] = all;
    }
    __syncthreads();
  }
}

// Adds the splits of a head in order; one block for each head of a row. sinks: [n_heads] or null. A row that sees
// nothing is zero.
extern "C" __global__ void __launch_bounds__(threads) attention_merge(
    const float* sums, const float2* stats, const uint32_t* positions, const uint32_t* seq_of_row,
    const uint32_t* reaches, int window, const float* sinks, float* out, int out_stride, int n_splits, int head_dim) {
  const int head = blockIdx.x, row = blockIdx.y;
  int n = 0;
  if (seq_of_row[row] != none) {
    const uint32_t position = positions[row], end = reaches ? reaches[row] : position + 1;
    const uint32_t first = window && position >= uint32_t(window) ? position + 1 - window : 0;
    if (first < end) n = int((end - 1) / split_len - first / split_len + 1);
  }
  const size_t at = (size_t(row) * gridDim.x + head) * n_splits;
  float peak = sinks ? sinks[head] : -INFINITY;
  for (int s = 0; s < n; s++) peak = fmaxf(peak, stats[at + s].x);
  float total = sinks ? expf(sinks[head] - peak) : 0.0f;
  for (int s = 0; s < n; s++) total = fmaf(stats[at + s].y, expf(stats[at + s].x - peak), total);
  for (int column = threadIdx.x; column < head_dim; column += threads) {
    float sum = 0.0f;
    for (int s = 0; s < n; s++) sum = fmaf(sums[(at + s) * head_dim + column], expf(stats[at + s].x - peak), sum);
    out[size_t(row) * out_stride + head * head_dim + column] = n ? sum / total : 0.0f;
  }
}

#define MAKE_ONE(TYPE, NAME, HEADS)                                                                               \
  extern "C" __global__ void __launch_bounds__(threads) attention_##NAME##_##HEADS(                               \
      const float* q, int q_stride, const TYPE* k_pages, const TYPE* v_pages, int n_pages, int n_kv_heads,        \
      int page_shift, int head_dim, const uint32_t* words, const uint32_t* positions, const uint32_t* seq_of_row, \
      const uint32_t* bases, const uint32_t* reaches, int n_words, int n_seqs, int window, int n_heads,           \
      float scale, float softcap, float* sums, float2* stats) {                                                   \
    attend<TYPE, HEADS>(q, q_stride, k_pages, v_pages, {n_pages, n_kv_heads, page_shift, head_dim},               \
                        {words, positions, seq_of_row, bases, reaches, n_words, n_seqs, window}, n_heads, scale,  \
                        softcap, sums, stats);                                                                    \
  }
#define MAKE(TYPE, NAME)  \
  MAKE_ONE(TYPE, NAME, 1) \
  MAKE_ONE(TYPE, NAME, 4) \
  MAKE_ONE(TYPE, NAME, 8)

MAKE(float, f32)
MAKE(__half, f16)
MAKE(__nv_bfloat16, bf16)
