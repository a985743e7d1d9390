// A row of Q8 weights times a vector of Q8 activations: dp4a, then a sum over the warp's lanes.
#include <cuda_fp16.h>

__device__ __noinline__ float scaled(int sum, __half scale, float x_scale) {
  return float(sum) * x_scale * __half2float(scale);
}

// w: [n_rows, n_words] words of four quants; x: [n_words]; w_scale: [n_rows, n_words / 8]; x_scale: [n_words / 8].
extern "C" __global__ void q8_matvec(const int* __restrict__ w, const int* __restrict__ x,
                                     const __half* __restrict__ w_scale,
                                     const float* __restrict__ x_scale, float* __restrict__ y,
                                     int n_rows, int n_words) {
  int row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= n_rows) return;
  float sum = 0.0f;
  for (int block = threadIdx.x; block < n_words / 8; block += 32) {
    const int4* wb = reinterpret_cast<const int4*>(w + row * n_words + block * 8);
    const int4* xb = reinterpret_cast<const int4*>(x + block * 8);
    int dot = 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int4 a = wb[half], b = xb[half];
      dot = __dp4a(a.x, b.x, dot);
      dot = __dp4a(a.y, b.y, dot);
      dot = __dp4a(a.z, b.z, dot);
      dot = __dp4a(a.w, b.w, dot);
    }
    sum += scaled(dot, w_scale[row * (n_words / 8) + block], x_scale[block]);
  }
  for (int offset = 16; offset; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (threadIdx.x == 0) y[row] = sum;
}
