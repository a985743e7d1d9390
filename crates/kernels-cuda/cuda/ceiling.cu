// What a GPU does at best, for comparison with the kernels of a model: reads of memory that is larger than its caches, and a
// launch that does nothing.
#include <stddef.h>
#include <stdint.h>

constexpr int read_threads = 512;
constexpr int read_loads = 8;  // of 16 bytes, under way at once in each thread
constexpr int read_warps = read_threads / 32;

// The sum of all words, modulo 2^32: one of each block. A chunk has 64 KiB; blocks take every `gridDim.x`-th one.
extern "C" __global__ void __launch_bounds__(read_threads) read_all(const uint4* from, int n_chunks, uint32_t* out) {
  __shared__ uint32_t partial[read_warps];
  uint32_t sum = 0;
  for (int chunk = blockIdx.x; chunk < n_chunks; chunk += gridDim.x) {
    const uint4* at = from + size_t(chunk) * (read_threads * read_loads) + threadIdx.x;
    uint4 values[read_loads];
#pragma unroll
    for (int i = 0; i < read_loads; i++) values[i] = __ldcs(at + i * read_threads);
#pragma unroll
    for (int i = 0; i < read_loads; i++) sum += values[i].x + values[i].y + values[i].z + values[i].w;
  }
  for (int offset = 16; offset; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  uint32_t all = 0;
  for (int i = 0; i < read_warps; i++) all += partial[i];
  out[blockIdx.x] = all;
}

extern "C" __global__ void nothing() {}
