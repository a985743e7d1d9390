// Norms over runs of columns: whole rows, or the heads of a row.
//
// A run's sums have one order, which its length alone decides: up to 256 columns belong to a warp, more to a block.
#include <cstdint>

// Sums over the threads that share a run, the same in all of them: lanes in pairs, then warps in order.
template <int warps>
struct Sum {
  float (&partial)[warps];
  __device__ __forceinline__ float operator()(float x) const {
    for (int offset = 16; offset; offset >>= 1) x += __shfl_xor_sync(0xffffffffu, x, offset);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0.0f;
    for (int i = 0; i < warps; i++) sum += partial[i];
    __syncthreads();
    return sum;
  }
};

struct WarpSum {
  __device__ __forceinline__ float operator()(float x) const {
    for (int offset = 16; offset; offset >>= 1) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
  }
};

// out = (x - mean) / sqrt(variance + eps) * weight + bias over a run of `n` columns; without `centered`, the mean is
// taken for zero. weight, bias: [n] or null.
template <bool centered, int threads, class S>
__device__ __forceinline__ void norm(
    const float* x, const float* weight, const float* bias, float* out, int n, float eps, int lane, const S& sum) {
  float mean = 0.0f;
  if (centered) {
    float total = 0.0f;
    for (int i = lane; i < n; i += threads) total += x[i];
    mean = sum(total) / float(n);
  }
  float squares = 0.0f;
  for (int i = lane; i < n; i += threads) {
    const float away = centered ? x[i] - mean : x[i];
    squares = fmaf(away, away, squares);
  }
  const float scale = 1.0f / sqrtf(sum(squares) / float(n) + eps);
  for (int i = lane; i < n; i += threads) {
    float y = (centered ? x[i] - mean : x[i]) * scale;
    if (weight) y *= weight[i];
    if (bias) y += bias[i];
    out[i] = y;
  }
}

constexpr int warps = 8;

// A block for each run of a row; grid: runs, rows. `step` is from the weight and bias of a run to those of the next.
template <bool centered>
__device__ __forceinline__ void norm_of_block(
    const float* x, int x_stride, const float* weight, const float* bias, float* out, int out_stride, int group,
    float eps, int step) {
  __shared__ float partial[warps];
  const size_t row = blockIdx.y, first = size_t(blockIdx.x) * group, of_run = size_t(blockIdx.x) * step;
  norm<centered, 32 * warps>(
      x + row * x_stride + first, weight ? weight + of_run : weight, bias ? bias + of_run : bias,
      out + row * out_stride + first, group, eps, threadIdx.x, Sum<warps>{partial});
}

// A warp for each run of a row; grid: eight runs each, rows.
template <bool centered>
__device__ __forceinline__ void norm_of_warp(
    const float* x, int x_stride, const float* weight, const float* bias, float* out, int out_stride, int group,
    float eps, int step, int n_groups) {
  const int run = blockIdx.x * warps + threadIdx.x / 32;
  if (run >= n_groups) return;
  const size_t row = blockIdx.y, first = size_t(run) * group, of_run = size_t(run) * step;
  norm<centered, 32>(
      x + row * x_stride + first, weight ? weight + of_run : weight, bias ? bias + of_run : bias,
      out + row * out_stride + first, group, eps, threadIdx.x % 32, WarpSum{});
}

#define MAKE(NAME, CENTERED)                                                                                   \
  extern "C" __global__ void __launch_bounds__(32 * warps) NAME(                                               \
      const float* x, int x_stride, const float* weight, const float* bias, float* out, int out_stride,        \
      int group, float eps, int step, int) {                                                                   \
    norm_of_block<CENTERED>(x, x_stride, weight, bias, out, out_stride, group, eps, step);                     \
  }                                                                                                            \
  extern "C" __global__ void __launch_bounds__(32 * warps) NAME##_heads(                                       \
      const float* x, int x_stride, const float* weight, const float* bias, float* out, int out_stride,        \
      int group, float eps, int step, int n_groups) {                                                          \
    norm_of_warp<CENTERED>(x, x_stride, weight, bias, out, out_stride, group, eps, step, n_groups);            \
  }

MAKE(rms_norm, false)
MAKE(layer_norm, true)
