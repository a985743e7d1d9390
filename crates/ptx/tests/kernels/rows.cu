// Sums, softmax and counts of rows: barriers, shuffles, approximate instructions, atomics, tables.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>

__device__ float block_sum(float x, float* partial) {
  for (int offset = 16; offset; offset >>= 1) x += __shfl_down_sync(0xffffffffu, x, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0.0f;
  for (int i = 0; i < blockDim.x / 32; i++) sum += partial[i];
  __syncthreads();
  return sum;
}

// out[row] = sum of x[row, 0..n]; one block per row.
extern "C" __global__ void row_sums(const float* __restrict__ x, float* __restrict__ out, int n) {
  __shared__ float partial[32];
  float sum = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * n + i];
  sum = block_sum(sum, partial);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

// Softmax of each row in place, F16 beside it; one block per row.
extern "C" __global__ void softmax(float* __restrict__ x, __half* __restrict__ rounded, int n) {
  __shared__ float partial[32];
  float* row = x + size_t(blockIdx.x) * n;
  float peak = -INFINITY;
  for (int i = threadIdx.x; i < n; i += blockDim.x) peak = fmaxf(peak, row[i]);
  for (int offset = 16; offset; offset >>= 1) peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, offset));
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = peak;
  __syncthreads();
  for (int i = 0; i < blockDim.x / 32; i++) peak = fmaxf(peak, partial[i]);
  __syncthreads();
  float sum = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += row[i] = expf(row[i] - peak);
  sum = block_sum(sum, partial);
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    row[i] /= sum;
    rounded[size_t(blockIdx.x) * n + i] = __float2half(row[i]);
  }
}

__constant__ unsigned char classes[16] = {0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 4};
__device__ unsigned seen = 5;

// Counts of the classes of the low four bits; `seen` counts all values.
extern "C" __global__ void histogram(const unsigned char* __restrict__ x, unsigned* __restrict__ counts, int n) {
  __shared__ unsigned local[5];
  if (threadIdx.x < 5) local[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&local[classes[x[i] & 15]], 1u);
  __syncthreads();
  if (threadIdx.x < 5) {
    atomicAdd(&counts[threadIdx.x], local[threadIdx.x]);
    atomicAdd(&seen, local[threadIdx.x]);
  }
}

// A few functions of the host's library, for what they compile to.
extern "C" __global__ void functions(const float* __restrict__ x, float* __restrict__ out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float v = x[i];
  out[i * 10 + 0] = expf(v);
  out[i * 10 + 1] = logf(fabsf(v) + 0.5f);
  out[i * 10 + 2] = sinf(v * 100.0f);
  out[i * 10 + 3] = cosf(v * 1000000.0f);
  out[i * 10 + 4] = tanhf(v);
  out[i * 10 + 5] = erff(v);
  out[i * 10 + 6] = powf(fabsf(v), 1.7f);
  out[i * 10 + 7] = rsqrtf(fabsf(v) + 1e-3f) + sqrtf(fabsf(v));
  out[i * 10 + 8] = __bfloat162float(__float2bfloat16(v)) + roundf(v) + rintf(v) + truncf(v);
  out[i * 10 + 9] = float(double(v) * 3.0) + log1pf(fabsf(v)) + fmodf(v, 0.3f);
}
