// Rows of F32 values in half precision, the input of products on tensor cores.
#include "matmul_half.cuh"
#include "parts.cuh"

using namespace in_half;

constexpr int round_warps = 8;

// The largest bits over a block, the same in all threads.
__device__ __forceinline__ uint32_t block_max(uint32_t x, uint32_t (&partial)[round_warps]) {
  for (int offset = 16; offset; offset >>= 1) x = max(x, __shfl_xor_sync(0xffffffffu, x, offset));
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  for (int i = 0; i < round_warps; i++) x = max(x, partial[i]);
  return x;
}

// Rows in half precision, with zeros up to a multiple of `half_padding` columns; a block for each. F16 has a power of two for
// each row, whose inverse is in `scales`: the largest magnitude becomes 2^14 to 2^15.
template <class T>
__device__ __forceinline__ void round_rows(
    const float* x, int x_stride, uint32_t* out, int out_stride, float* scales, int n_cols) {
  x += size_t(blockIdx.x) * x_stride;
  out += size_t(blockIdx.x) * out_stride / 2;
  float scale = 1.0f;
  if (scales) {
    __shared__ uint32_t partial[round_warps];
    uint32_t top = 0;
    for (int i = threadIdx.x; i < n_cols; i += 32 * round_warps) top = max(top, __float_as_uint(x[i]) & 0x7fffffff);
    top = block_max(top, partial);
    // Rows that are all zeros or have what is not finite stay as they are.
    const int exponent = min(max(127 + 14 - (int(top >> 23) - 127), 1), 253);
    if (top != 0 && top < 0x7f800000) scale = __int_as_float(exponent << 23);
    if (threadIdx.x == 0) scales[blockIdx.x] = 1.0f / scale;
  }
  const int n_pairs = (n_cols + half_padding - 1) / half_padding * (half_padding / 2);
  for (int i = threadIdx.x; i < n_pairs; i += 32 * round_warps) {
    const float a = 2 * i < n_cols ? x[2 * i] : 0.0f, b = 2 * i + 1 < n_cols ? x[2 * i + 1] : 0.0f;
    out[i] = pack2<T>(scale * a, scale * b);
  }
}

#define MAKE_ROUND(NAME, T)                                                                                   \
  extern "C" __global__ void __launch_bounds__(32 * round_warps) NAME(                                        \
      const float* x, int x_stride, uint32_t* out, int out_stride, float* scales, int n_cols) {               \
    round_rows<T>(x, x_stride, out, out_stride, scales, n_cols);                                              \
  }

MAKE_ROUND(round_rows_f16, __half)
MAKE_ROUND(round_rows_bf16, __nv_bfloat16)

// Rows in two parts of BF16 each, one below the other, with zeros up to a multiple of `half_padding` columns; a block for each
// row.
extern "C" __global__ void __launch_bounds__(32 * round_warps) split_rows(
    const float* x, int x_stride, uint32_t* out, int out_stride, int n_cols) {
  x += size_t(blockIdx.x) * x_stride;
  out += size_t(blockIdx.x) * out_stride;
  const int n_pairs = (n_cols + half_padding - 1) / half_padding * (half_padding / 2);
  for (int i = threadIdx.x; i < n_pairs; i += 32 * round_warps) {
    const float a = 2 * i < n_cols ? x[2 * i] : 0.0f, b = 2 * i + 1 < n_cols ? x[2 * i + 1] : 0.0f;
    out[i] = in_parts::part(a, b, false);
    out[out_stride / 2 + i] = in_parts::part(a, b, true);
  }
}
