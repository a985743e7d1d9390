// Keys and values in pages: storing them, and attention of decode steps over them.
//
// Pages have the shape [n_pages, n_kv_heads, page_len, head_dim]. A context is cut into splits of 256 positions from
// its start; a block computes one split for the query heads that share a head of keys, and a second kernel adds
// the splits of a head in order. So a result's bits depend on its own context alone.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

constexpr int split_len = 256;
constexpr int max_head_dim = 256;
constexpr int threads = 128;

template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) { return x; }
template <>
__device__ __forceinline__ __half from_float<__half>(float x) { return __float2half(x); }
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) { return __float2bfloat16(x); }

// Eight elements from a place that is aligned to 16 bytes.
__device__ __forceinline__ void load8(const float* from, float (&to)[8]) {
  float4 a = reinterpret_cast<const float4*>(from)[0], b = reinterpret_cast<const float4*>(from)[1];
  to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w, to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}

__device__ __forceinline__ void load8(const __half* from, float (&to)[8]) {
  uint4 all = *reinterpret_cast<const uint4*>(from);
  const uint32_t word[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&word[i]));
    to[2 * i] = pair.x, to[2 * i + 1] = pair.y;
  }
}

__device__ __forceinline__ void load8(const __nv_bfloat16* from, float (&to)[8]) {
  uint4 all = *reinterpret_cast<const uint4*>(from);
  const uint32_t word[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    to[2 * i] = __uint_as_float(word[i] << 16), to[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000);
  }
}

// Where pages are, and how they are cut.
struct Pages {
  int n_pages, n_kv_heads, page_len, head_dim;

  __device__ __forceinline__ size_t at(uint32_t page, int kv_head, int in_page) const {
    if (page >= uint32_t(n_pages)) __trap();
    return ((size_t(page) * n_kv_heads + kv_head) * page_len + in_page) * head_dim;
  }
};

// Keys and values of new positions, [n_rows, n_kv_heads * head_dim], to their slots: the page times `page_len`, plus
// the position in the page. A row whose slot is 0xffffffff is not stored. Blocks (row, 0) store keys, (row, 1) values.
template <class T>
__device__ __forceinline__ void kv_store(
    const float* k, int k_stride, const float* v, int v_stride, const uint32_t* slots, T* k_pages, T* v_pages,
    const Pages& pages) {
  const uint32_t slot = slots[blockIdx.x];
  if (slot == 0xffffffffu) return;
  const float* row = blockIdx.y ? v + size_t(blockIdx.x) * v_stride : k + size_t(blockIdx.x) * k_stride;
  T* to = blockIdx.y ? v_pages : k_pages;
  for (int i = threadIdx.x; i < pages.n_kv_heads * pages.head_dim; i += threads) {
    int kv_head = i / pages.head_dim;
    to[pages.at(slot / pages.page_len, kv_head, slot % pages.page_len) + i % pages.head_dim] = from_float<T>(row[i]);
  }
}

// What a step attends to.
struct Context {
  const uint32_t* kv_lens;      // [n_rows]
  const uint32_t* block_table;  // [n_rows, table_len]
  int table_len, window;

  // Positions of a row, which must be in its part of the table.
  __device__ __forceinline__ int len(int row, int page_len, int n_splits) const {
    uint32_t len = kv_lens[row];
    if (len > uint64_t(table_len) * page_len || len > uint64_t(n_splits) * split_len) __trap();
    return int(len);
  }

  // The first position that a row sees: no window is 0.
  __device__ __forceinline__ int first(int len) const { return window && len > window ? len - window : 0; }
};

// One split of a row for `Heads` query heads at most: exponentials of the scores less their peak, times values.
// sums: [n_rows, n_heads, n_splits, head_dim], stats: [n_rows, n_heads, n_splits] of peak and sum of exponentials.
template <class T, int Heads>
__device__ __forceinline__ void attend(
    const float* q, int q_stride, const T* k_pages, const T* v_pages, const Pages& pages, const Context& context,
    int n_heads, float scale, float softcap, float* sums, float2* stats) {
  __shared__ __align__(16) float query[Heads][max_head_dim];
  __shared__ float score[Heads][split_len];
  __shared__ float part[threads][8];
  const int n_splits = gridDim.z, split = blockIdx.z, row = blockIdx.y;
  const int group = n_heads / pages.n_kv_heads, n_parts = (group + Heads - 1) / Heads;
  const int kv_head = blockIdx.x / n_parts, in_group = blockIdx.x % n_parts * Heads;
  const int heads = min(Heads, group - in_group), first_head = kv_head * group + in_group;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int n_chunks = pages.head_dim / 8;

  const int len = context.len(row, pages.page_len, n_splits);
  const int start = max(split * split_len, context.first(len)), end = min((split + 1) * split_len, len);
  if (start >= end) return;
  const int count = end - start;
  const uint32_t* table = context.block_table + size_t(row) * context.table_len;

  for (int i = threadIdx.x; i < Heads * pages.head_dim; i += threads) {
    int h = i / pages.head_dim, at = first_head + h;
    query[h][i % pages.head_dim] = h < heads ? q[size_t(row) * q_stride + at * pages.head_dim + i % pages.head_dim] : 0.0f;
  }
  __syncthreads();

  // Scores: eight lanes for a position, sixteen positions at a time. Behind the end the last one is taken again.
  for (int base = 0; base < count; base += 16) {
    const int i = base + warp * 4 + lane / 8, position = start + min(i, count - 1);
    const size_t at = pages.at(table[position / pages.page_len], kv_head, position % pages.page_len);
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
    if (lane == 0) stats[(size_t(row) * n_heads + first_head + h) * n_splits + split] = {peak, sum};
  }
  __syncthreads();

  // Values: a thread has eight columns and every `n_lines`-th position; then lines are added in order.
  const int n_lines = threads / n_chunks, line = threadIdx.x / n_chunks, chunk = threadIdx.x % n_chunks;
  float sum[Heads][8] = {};
  if (line < n_lines) {
    for (int i = line; i < count; i += n_lines) {
      const int position = start + i;
      const size_t at = pages.at(table[position / pages.page_len], kv_head, position % pages.page_len);
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
    float* to = sums + ((size_t(row) * n_heads + first_head + h) * n_splits + split) * pages.head_dim;
    for (int column = threadIdx.x; column < pages.head_dim; column += threads) {
      float all = 0.0f;
      for (int l = 0; l < n_lines; l++) all += part[l * n_chunks + column / 8][column % 8];
      to[column] = all;
    }
    __syncthreads();
  }
}

// Adds the splits of a head in order; one block for each head of a row. sinks: [n_heads] or null. A row without
// positions is zero.
extern "C" __global__ void __launch_bounds__(threads) attention_merge(
    const float* sums, const float2* stats, const uint32_t* kv_lens, int window, const float* sinks, float* out,
    int out_stride, int n_splits, int head_dim) {
  const int head = blockIdx.x, row = blockIdx.y;
  const Context context = {kv_lens, nullptr, 0, window};
  const int len = int(kv_lens[row]);
  const int first = context.first(len) / split_len, last = (len + split_len - 1) / split_len;
  const size_t at = (size_t(row) * gridDim.x + head) * n_splits;
  float peak = sinks ? sinks[head] : -INFINITY;
  for (int s = first; s < last; s++) peak = fmaxf(peak, stats[at + s].x);
  float total = sinks && len ? expf(sinks[head] - peak) : 0.0f;
  for (int s = first; s < last; s++) total = fmaf(stats[at + s].y, expf(stats[at + s].x - peak), total);
  for (int column = threadIdx.x; column < head_dim; column += threads) {
    float sum = 0.0f;
    for (int s = first; s < last; s++)
      sum = fmaf(sums[(at + s) * head_dim + column], expf(stats[at + s].x - peak), sum);
    out[size_t(row) * out_stride + head * head_dim + column] = len ? sum / total : 0.0f;
  }
}

#define MAKE_ONE(TYPE, NAME, HEADS)                                                                               \
  extern "C" __global__ void __launch_bounds__(threads) attention_##NAME##_##HEADS(                               \
      const float* q, int q_stride, const TYPE* k_pages, const TYPE* v_pages, int n_pages, int n_kv_heads,        \
      int page_len, int head_dim, const uint32_t* kv_lens, const uint32_t* block_table, int table_len,            \
      int window, int n_heads, float scale, float softcap, float* sums, float2* stats) {                          \
    attend<TYPE, HEADS>(q, q_stride, k_pages, v_pages, {n_pages, n_kv_heads, page_len, head_dim},                 \
                        {kv_lens, block_table, table_len, window}, n_heads, scale, softcap, sums, stats);         \
  }
#define MAKE(TYPE, NAME)                                                                                          \
  extern "C" __global__ void __launch_bounds__(threads) kv_store_##NAME(                                          \
      const float* k, int k_stride, const float* v, int v_stride, const uint32_t* slots, TYPE* k_pages,           \
      TYPE* v_pages, int n_pages, int n_kv_heads, int page_len, int head_dim) {                                   \
    kv_store<TYPE>(k, k_stride, v, v_stride, slots, k_pages, v_pages, {n_pages, n_kv_heads, page_len, head_dim}); \
  }                                                                                                               \
  MAKE_ONE(TYPE, NAME, 1)                                                                                         \
  MAKE_ONE(TYPE, NAME, 4)                                                                                         \
  MAKE_ONE(TYPE, NAME, 8)

MAKE(float, f32)
MAKE(__half, f16)
MAKE(__nv_bfloat16, bf16)
