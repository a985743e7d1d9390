// Keys and values of new positions, to their places in pages.
#include "pages.cuh"

constexpr int threads = 128;

// k, v: [n_rows, n_kv_heads * head_dim]. A slot is the page times its length, plus the position in the page; a row
// whose slot is 0xffffffff is not stored. Blocks (row, 0) store keys, (row, 1) values.
template <class T>
__device__ __forceinline__ void kv_store(
    const float* k, int k_stride, const float* v, int v_stride, const uint32_t* slots, T* k_pages, T* v_pages,
    const Pages& pages) {
  const uint32_t slot = slots[blockIdx.x];
  if (slot == none) return;
  const float* row = blockIdx.y ? v + size_t(blockIdx.x) * v_stride : k + size_t(blockIdx.x) * k_stride;
  T* to = blockIdx.y ? v_pages : k_pages;
  const int row_len = pages.row_len();
  const uint32_t page = slot >> pages.page_shift, in_page = slot & ((1u << pages.page_shift) - 1);
  for (int i = threadIdx.x; i < pages.n_kv_heads * row_len; i += threads) {
    const int kv_head = i / row_len, column = i % row_len;
    const float x = column < pages.head_dim ? row[kv_head * pages.head_dim + column] : 0.0f;
    to[pages.at(page, kv_head, in_page) + column] = from_float<T>(x);
  }
}

#define MAKE(TYPE, NAME)                                                                                          \
  extern "C" __global__ void __launch_bounds__(threads) kv_store_##NAME(                                          \
      const float* k, int k_stride, const float* v, int v_stride, const uint32_t* slots, TYPE* k_pages,           \
      TYPE* v_pages, int n_pages, int n_kv_heads, int page_shift, int head_dim) {                                 \
    kv_store<TYPE>(k, k_stride, v, v_stride, slots, k_pages, v_pages,                                             \
                   {n_pages, n_kv_heads, page_shift, head_dim});                                                  \
  }

MAKE(float, f32)
MAKE(__half, f16)
MAKE(__nv_bfloat16, bf16)
