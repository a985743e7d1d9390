// What happens to queries, keys and values between the products and attention, in one launch. Decode steps with a row of
// each sequence leave it to attention.
#include "heads.cuh"

constexpr int warps = 4;
constexpr int threads = 32 * warps;
constexpr int max_head_dim = 576;

// q: [n_rows, n_heads * head_dim], to q_out, which may be the same. Keys and values of a row without a slot are not stored.
// Grid: rows, and heads of q, k and v, one behind the other, four in each block.
template <class T>
__device__ __forceinline__ void store(
    const float* q, int q_stride, float* q_out, int q_out_stride, const NewHeads& heads, T* k_pages, T* v_pages,
    const Pages& pages, int n_heads) {
  __shared__ __align__(16) float staged[warps][max_head_dim];
  const int lane = threadIdx.x % 32, row = blockIdx.x, head_dim = pages.head_dim;
  const int head = blockIdx.y * warps + threadIdx.x / 32;
  float* x = staged[threadIdx.x / 32];
  const bool is_query = head < n_heads, is_value = head >= n_heads + pages.n_kv_heads;
  const int kv_head = (head - n_heads) % pages.n_kv_heads;
  // Values that are keys are stored once.
  const int n_planes = k_pages == v_pages ? 1 : 2;
  if (head >= n_heads + n_planes * pages.n_kv_heads) return;
  const uint32_t slot = heads.slots[row];
  if (!is_query && slot == none) return;

  const float* of_query = q + size_t(row) * q_stride + head * head_dim;
  bring_head(x, is_query ? of_query : heads.at(is_value, row, kv_head, head_dim), head_dim, pages.row_len<T>());
  if (!is_value) heads.turn(x, row, is_query ? heads.q_norm : heads.k_norm, head_dim);
  if (!is_query) return store_head(x, is_value ? v_pages : k_pages, pages, kv_head, slot);
  float* to = q_out + size_t(row) * q_out_stride + head * head_dim;
  for (int i = lane; i < head_dim; i += 32) to[i] = x[i];
}

#define MAKE(TYPE, NAME)                                                                                            \
  extern "C" __global__ void __launch_bounds__(threads) kv_store_##NAME(                                            \
      const float* q, int q_stride, float* q_out, int q_out_stride, const float* k, int k_stride, const float* v,   \
      int v_stride, const float* table, int table_stride, int n_pairs, int neighbours, const float* q_norm,         \
      float q_eps, const float* k_norm, float k_eps, const uint32_t* slots, TYPE* k_pages, TYPE* v_pages,           \
      int n_pages, int n_kv_heads, int page_shift, int head_dim, int n_heads) {                                     \
    store<TYPE>(q, q_stride, q_out, q_out_stride,                                                                   \
                {k, k_stride, v, v_stride, table, table_stride, n_pairs, neighbours != 0, {q_norm, q_eps},          \
                 {k_norm, k_eps}, slots},                                                                           \
                k_pages, v_pages, {n_pages, n_kv_heads, page_shift, head_dim}, n_heads);                            \
  }

MAKE(float, f32)
MAKE(__half, f16)
MAKE(__nv_bfloat16, bf16)
MAKE(Q8, q8_0)
MAKE(Q4, q4_0)
MAKE(F8, f8)
