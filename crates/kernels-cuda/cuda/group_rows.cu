// Rows of F32 values in half precision, in the order in which `matmul_wgmma.cuh` takes them.
#include "blocks.cuh"
#include "halves.cuh"
#include "tensor.cuh"

constexpr int rows = 8;   // of a block
constexpr int warps = 8;  // with four steps of 16 columns each
constexpr uint32_t all_lanes = 0xffffffffu;

// x: [n_rows, n_cols], rows at multiples of 16 bytes; out: as `group_piece` has it, with room for `out_rows` rows. F16 has a power
// of two for each row, whose inverse is in `scales`: the largest magnitude becomes 2^14 to 2^15.
template <class T>
__device__ __forceinline__ void group_rows(
    const float* x, int x_stride, uint4* out, int out_rows, float* scales, int n_rows, int n_cols) {
  __shared__ float of_rows[rows];
  const int lane = threadIdx.x, warp = threadIdx.y, first_row = blockIdx.x * rows;
  if (scales) {
    uint32_t top = 0;
    const float* own = x + size_t(min(first_row + warp, n_rows - 1)) * x_stride;
    for (int i = lane; i < n_cols; i += 32) top = max(top, __float_as_uint(own[i]) & 0x7fffffff);
    for (int offset = 16; offset; offset >>= 1) top = max(top, __shfl_xor_sync(all_lanes, top, offset));
    // Rows that are all zeros or have what is not finite stay as they are.
    const int exponent = min(max(127 + 14 - (int(top >> 23) - 127), 1), 253);
    const float scale = top != 0 && top < 0x7f800000 ? __int_as_float(exponent << 23) : 1.0f;
    if (lane == 0) of_rows[warp] = scale;
    if (lane == 0 && blockIdx.y == 0 && first_row + warp < n_rows) scales[first_row + warp] = 1.0f / scale;
    __syncthreads();
  }
  // Eight lanes have eight rows, whose results are neighbours.
  const int row = first_row + lane % rows, at = (blockIdx.y * warps + warp) * 4 + lane / rows;
  const int span = at / 8, step = at % 8;
  if (row >= n_rows || 128 * span >= n_cols) return;
  const float scale = scales ? of_rows[lane % rows] : 1.0f;
  uint32_t first[4], second[4];
#pragma unroll
  for (int c = 0; c < 4; c++) {
    const float4 v = row_piece<true>(x + size_t(row) * x_stride, 128 * span + 32 * c + 4 * step, n_cols);
    first[c] = pack2<T>(scale * v.x, scale * v.y);
    second[c] = pack2<T>(scale * v.z, scale * v.w);
  }
  *group_piece(out, out_rows, row, at, 0) = {first[0], first[1], first[2], first[3]};
  *group_piece(out, out_rows, row, at, 1) = {second[0], second[1], second[2], second[3]};
}

#define MAKE_GROUP(NAME, T)                                                                                           \
  extern "C" __global__ void __launch_bounds__(32 * warps) group_rows_##NAME(                                         \
      const float* x, int x_stride, uint4* out, int out_rows, float* scales, int n_rows, int n_cols) {                \
    group_rows<T>(x, x_stride, out, out_rows, scales, n_rows, n_cols);                                                \
  }

MAKE_GROUP(f16, __half)
MAKE_GROUP(bf16, __nv_bfloat16)
