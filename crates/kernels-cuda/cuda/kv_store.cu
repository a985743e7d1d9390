// What happens to queries, keys and values between the products and attention, in one launch: norms of single heads,
// rotary embeddings, and the way of keys and values into their pages.
//
// A warp has a head of a row, in shared memory.
#include "pages.cuh"

constexpr int warps = 4;
constexpr int threads = 32 * warps;
constexpr int max_head_dim = 576;

// Eight elements to their place in a row of a page. All lanes of a warp call it.
template <class T>
struct Row {
  T* to;
  __half* scales;

  __device__ __forceinline__ void store(int chunk, const float (&x)[8], bool exists) const {
    if (!exists) return;
    if constexpr (sizeof(T) == 4) {
      float4* place = reinterpret_cast<float4*>(to + 8 * chunk);
      place[0] = {x[0], x[1], x[2], x[3]}, place[1] = {x[4], x[5], x[6], x[7]};
    } else {
      __align__(16) T all[8];
#pragma unroll
      for (int i = 0; i < 8; i++) all[i] = from_float<T>(x[i]);
      *reinterpret_cast<uint4*>(to + 8 * chunk) = *reinterpret_cast<const uint4*>(all);
    }
  }
};

// Blocks of 32 elements belong to four lanes. A block with an element that is not finite becomes NaN.
template <>
struct Row<Q8> {
  Q8* to;
  __half* scales;

  __device__ __forceinline__ void store(int chunk, const float (&x)[8], bool exists) const {
    float peak = 0.0f;
    bool is_odd = false;
#pragma unroll
    for (int i = 0; i < 8; i++) peak = fmaxf(peak, fabsf(x[i])), is_odd |= !(fabsf(x[i]) < INFINITY);
    for (int offset = 1; offset < 4; offset *= 2) {
      peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, offset));
      is_odd |= __shfl_xor_sync(0xffffffffu, int(is_odd), offset) != 0;
    }
    if (!exists) return;
    const float scale = peak / 127.0f, inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
    uint32_t word[2] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const float level = is_odd ? 0.0f : fminf(fmaxf(roundf(x[i] * inverse), -127.0f), 127.0f);
      word[i / 4] |= (uint32_t(int(level)) & 0xff) << 8 * (i % 4);
    }
    *reinterpret_cast<uint2*>(to + 8 * chunk) = {word[0], word[1]};
    if (chunk % 4 == 0) scales[chunk / 4] = is_odd ? __ushort_as_half(0x7e00) : __float2half(scale);
  }
};

// As of Q8_0; the element of the largest magnitude, of several the first, has level 0.
template <>
struct Row<Q4> {
  Q4* to;
  __half* scales;

  __device__ __forceinline__ void store(int chunk, const float (&x)[8], bool exists) const {
    float peak = 0.0f;
    bool is_odd = false;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      if (fabsf(x[i]) > fabsf(peak)) peak = x[i];
      is_odd |= !(fabsf(x[i]) < INFINITY);
    }
    for (int offset = 1; offset < 4; offset *= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, peak, offset);
      const bool is_first = (threadIdx.x & offset) != 0;
      if (fabsf(other) > fabsf(peak) || (is_first && fabsf(other) == fabsf(peak))) peak = other;
      is_odd |= __shfl_xor_sync(0xffffffffu, int(is_odd), offset) != 0;
    }
    if (!exists) return;
    const float scale = peak / -8.0f, inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint32_t level = is_odd ? 0 : min(__float2uint_rz(x[i] * inverse + 8.5f), 15u);
      word |= level << (4 * (i / 2) + 16 * (i % 2));
    }
    *reinterpret_cast<uint32_t*>(to + 4 * chunk) = word;
    if (chunk % 4 == 0) scales[chunk / 4] = is_odd ? __ushort_as_half(0x7e00) : __float2half(scale);
  }
};

// The nearest number of FP8, of two the even one, or the largest; NaN for what is not finite.
__device__ __forceinline__ uint32_t to_f8(float x) {
  const float size = fminf(fabsf(x), 448.0f);
  const uint32_t bits = __float_as_uint(size) - (120u << 23);
  const uint32_t normal = (bits + 0x7ffffu + (bits >> 20 & 1)) >> 20;
  const uint32_t number = size < 1.0f / 64.0f ? uint32_t(rintf(size * 512.0f)) : normal;
  return fabsf(x) < INFINITY ? (__float_as_uint(x) >> 24 & 0x80) | number : 0x7f;
}

template <>
struct Row<F8> {
  F8* to;
  __half* scales;

  __device__ __forceinline__ void store(int chunk, const float (&x)[8], bool exists) const {
    if (!exists) return;
    uint32_t word[2] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) word[i / 4] |= to_f8(x[i]) << 8 * (i % 4);
    *reinterpret_cast<uint2*>(to + 8 * chunk) = {word[0], word[1]};
  }
};

// Norm of a head, null for none: x / sqrt(mean(x^2) + eps) * weight.
struct HeadNorm {
  const float* weight;  // [head_dim]
  float eps;
};

// q: [n_rows, n_heads * head_dim], to q_out, which may be the same; k, v: [n_rows, n_kv_heads * head_dim], to the row's
// slot: the page times its length, plus the position in the page. Keys and values of a row whose slot is 0xffffffff are
// not stored. table: [n_rows, 2 * n_pairs] of cosines, then sines. Pairs are neighbours, or lie `n_pairs` apart. Grid:
// rows, and heads of q, k and v, one behind the other, four in each block.
template <class T>
__device__ __forceinline__ void store(
    const float* q, int q_stride, float* q_out, int q_out_stride, const float* k, int k_stride, const float* v,
    int v_stride, const float* table, int table_stride, int n_pairs, bool neighbours, const HeadNorm& q_norm,
    const HeadNorm& k_norm, const uint32_t* slots, T* k_pages, T* v_pages, const Pages& pages, int n_heads) {
  __shared__ __align__(16) float staged[warps][max_head_dim];
  const int lane = threadIdx.x % 32, row = blockIdx.x, head_dim = pages.head_dim;
  const int head = blockIdx.y * warps + threadIdx.x / 32;
  float* x = staged[threadIdx.x / 32];
  const bool is_query = head < n_heads, is_value = head >= n_heads + pages.n_kv_heads;
  const int kv_head = (head - n_heads) % pages.n_kv_heads;
  // Values that are keys are stored once.
  const int n_planes = k_pages == v_pages ? 1 : 2;
  if (head >= n_heads + n_planes * pages.n_kv_heads) return;
  const uint32_t slot = slots[row];
  if (!is_query && slot == none) return;

  const float* from = is_query   ? q + size_t(row) * q_stride + head * head_dim
                      : is_value ? v + size_t(row) * v_stride + kv_head * head_dim
                                 : k + size_t(row) * k_stride + kv_head * head_dim;
  const int row_len = pages.row_len<T>();
  for (int i = lane; i < row_len; i += 32) x[i] = i < head_dim ? from[i] : 0.0f;
  __syncwarp();

  if (!is_value) {
    const HeadNorm& norm = is_query ? q_norm : k_norm;
    if (norm.weight) {
      float squares = 0.0f;
      for (int i = lane; i < head_dim; i += 32) squares = fmaf(x[i], x[i], squares);
      for (int offset = 16; offset; offset >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, offset);
      const float scale = 1.0f / sqrtf(squares / float(head_dim) + norm.eps);
      for (int i = lane; i < head_dim; i += 32) x[i] = x[i] * scale * norm.weight[i];
      __syncwarp();
    }
    const float* turn = table + size_t(row) * table_stride;
    for (int i = lane; i < n_pairs; i += 32) {
      const int a = neighbours ? 2 * i : i, b = neighbours ? a + 1 : a + n_pairs;
      const float c = turn[i], s = turn[n_pairs + i], first = x[a], second = x[b];
      x[a] = fmaf(first, c, -(second * s));
      x[b] = fmaf(second, c, first * s);
    }
    __syncwarp();
  }

  if (is_query) {
    float* to = q_out + size_t(row) * q_out_stride + head * head_dim;
    for (int i = lane; i < head_dim; i += 32) to[i] = x[i];
    return;
  }
  const uint32_t page = slot >> pages.page_shift, in_page = slot & ((1u << pages.page_shift) - 1);
  T* all = is_value ? v_pages : k_pages;
  const Row<T> to = {all + pages.at<T>(page, kv_head, in_page),
                     const_cast<__half*>(pages.scales<T>(all, page, kv_head, in_page))};
  for (int first = 0; 8 * first < row_len; first += 32) {
    const int chunk = first + lane;
    const bool exists = 8 * chunk < row_len;
    float eight[8] = {};
    if (exists) load8(x + 8 * chunk, eight);
    to.store(chunk, eight, exists);
  }
}

#define MAKE(TYPE, NAME)                                                                                            \
  extern "C" __global__ void __launch_bounds__(threads) kv_store_##NAME(                                            \
      const float* q, int q_stride, float* q_out, int q_out_stride, const float* k, int k_stride, const float* v,   \
      int v_stride, const float* table, int table_stride, int n_pairs, int neighbours, const float* q_norm,         \
      float q_eps, const float* k_norm, float k_eps, const uint32_t* slots, TYPE* k_pages, TYPE* v_pages,           \
      int n_pages, int n_kv_heads, int page_shift, int head_dim, int n_heads) {                                     \
    store<TYPE>(q, q_stride, q_out, q_out_stride, k, k_stride, v, v_stride, table, table_stride, n_pairs,           \
                neighbours != 0, {q_norm, q_eps}, {k_norm, k_eps}, slots, k_pages, v_pages,                         \
                {n_pages, n_kv_heads, page_shift, head_dim}, n_heads);                                              \
  }

MAKE(float, f32)
MAKE(__half, f16)
MAKE(__nv_bfloat16, bf16)
MAKE(Q8, q8_0)
MAKE(Q4, q4_0)
MAKE(F8, f8)
