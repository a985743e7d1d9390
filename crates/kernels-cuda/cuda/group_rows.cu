// Rows of F32 values in half precision, in the order in which `matmul_wgmma.cuh` takes them.
#include "blocks.cuh"
#include "tensor.cuh"

constexpr int warps = 8;
constexpr uint32_t all_lanes = 0xffffffffu;

// A warp has a row. x: [n_rows, n_cols], rows at multiples of 16 bytes; out: by eights of columns, `out_rows` rows of them
// each, with zeros up to a multiple of 32 columns. Of 16 columns, numbers 4 c and 4 c + 1 go to places 2 c and 2 c + 1, and
// numbers 4 c + 2 and 4 c + 3 to places eight behind these. F16 has a power of two for each row, whose inverse is in
// `scales`: the largest magnitude becomes 2^14 to 2^15.
template <class T>
__device__ __forceinline__ void group_rows(
    const float* x, int x_stride, uint4* out, int out_rows, float* scales, int n_rows, int n_cols) {
  const int lane = threadIdx.x, row = blockIdx.x * warps + threadIdx.y;
  if (row >= n_rows) return;
  x += size_t(row) * x_stride;
  float scale = 1.0f;
  if (scales) {
    uint32_t top = 0;
    for (int i = lane; i < n_cols; i += 32) top = max(top, __float_as_uint(x[i]) & 0x7fffffff);
    for (int offset = 16; offset; offset >>= 1) top = max(top, __shfl_xor_sync(all_lanes, top, offset));
    // Rows that are all zeros or have what is not finite stay as they are.
    const int exponent = min(max(127 + 14 - (int(top >> 23) - 127), 1), 253);
    if (top != 0 && top < 0x7f800000) scale = __int_as_float(exponent << 23);
    if (lane == 0) scales[row] = 1.0f / scale;
  }
  for (int i = lane; i < (n_cols + 31) / 32 * 2; i += 32) {
    uint32_t first[4], second[4];
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const float4 v = row_piece<true>(x, 16 * i + 4 * c, n_cols);
      first[c] = pack2<T>(scale * v.x, scale * v.y);
      second[c] = pack2<T>(scale * v.z, scale * v.w);
    }
    out[size_t(2 * i) * out_rows + row] = {first[0], first[1], first[2], first[3]};
    out[size_t(2 * i + 1) * out_rows + row] = {second[0], second[1], second[2], second[3]};
  }
}

#define MAKE_GROUP(NAME, T)                                                                                           \
  extern "C" __global__ void __launch_bounds__(32 * warps) group_rows_##NAME(                                         \
      const float* x, int x_stride, uint4* out, int out_rows, float* scales, int n_rows, int n_cols) {                \
    group_rows<T>(x, x_stride, out, out_rows, scales, n_rows, n_cols);                                                \
  }

MAKE_GROUP(f16, __half)
MAKE_GROUP(bf16, __nv_bfloat16)
