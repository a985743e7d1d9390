// Attention of decode steps in F32 arithmetic, over pages of any type.
#include "attention_decode.cuh"

// A split in F32, four heads at a time.
template <int Dim>
struct InF32 {
  static constexpr int at_once = 4;
  struct Memory {
    float query[at_once][Dim];
    float score[at_once][split_len];
    float part[threads][8];
  };
  void *k_pages, *v_pages;
  const Pages& pages;
  const Tables& tables;
  const Job& job;
  int type;
  Memory& memory;

  __device__ __forceinline__ void load(const void* from, const Block& block, int position, int column, float (&to)[8]) const {
    const uint32_t page = tables.page(block.seen, position, pages.page_shift);
    const uint32_t in_page = position & ((1 << pages.page_shift) - 1);
    load_elements(from, pages, page, block.kv_head, in_page, column, type, to);
  }

  __device__ __forceinline__ void store(const float* x, bool is_value, int kv_head, uint32_t slot) const {
    void* all = is_value ? v_pages : k_pages;
    switch (type) {
      case type_f32: return store_head(x, static_cast<float*>(all), pages, kv_head, slot);
      case type_f16: return store_head(x, static_cast<__half*>(all), pages, kv_head, slot);
      case type_bf16: return store_head(x, static_cast<__nv_bfloat16*>(all), pages, kv_head, slot);
      case type_q8_0: return store_head(x, static_cast<Q8*>(all), pages, kv_head, slot);
      case type_q4_0: return store_head(x, static_cast<Q4*>(all), pages, kv_head, slot);
      default: return store_head(x, static_cast<F8*>(all), pages, kv_head, slot);
    }
  }

  template <class Prepare>
  __device__ __forceinline__ void operator()(
      const Block& block, int start, int end, bool, const Prepare& prepare, Shared<Dim>& shared) const {
    // Queries are read for each split.
    prepare();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head_dim = pages.head_dim;
    const int n_chunks = pages.row_len(type) / 8, count = end - start;
    for (int first = 0; first < block.heads; first += at_once) {
      __syncthreads();
      for (int i = threadIdx.x; i < at_once * n_chunks * 8; i += threads) {
        const int h = i / (n_chunks * 8), column = i % (n_chunks * 8);
        const float* q = block.q + (first + h) * block.q_pitch;
        memory.query[h][column] = first + h < block.heads && column < head_dim ? q[column] * natural(job) : 0.0f;
      }
      __syncthreads();

      // Scores: eight lanes for a position, sixteen positions at a time. Behind the end the last one is taken again.
      for (int i = 4 * warp + lane / 8; i - lane / 8 - 4 * warp < count; i += 4 * warps) {
        float dot[at_once] = {};
        for (int chunk = lane % 8; chunk < n_chunks; chunk += 8) {
          float key[8];
          load(k_pages, block, start + min(i, count - 1), 8 * chunk, key);
#pragma unroll
          for (int h = 0; h < at_once; h++) {
            float x[8];
            load8(&memory.query[h][8 * chunk], x);
#pragma unroll
            for (int j = 0; j < 8; j++) dot[h] = fmaf(x[j], key[j], dot[h]);
          }
        }
#pragma unroll
        for (int h = 0; h < at_once; h++) {
          for (int offset = 4; offset; offset >>= 1) dot[h] += __shfl_xor_sync(0xffffffffu, dot[h], offset);
          if (lane % 8 == 0 && i < count) memory.score[h][i] = capped(dot[h], job.softcap);
        }
      }
      __syncthreads();

      // Weights: a warp for each head.
      if (first + warp < block.heads) {
        float* score = memory.score[warp];
        float peak = -INFINITY;
        for (int i = lane; i < count; i += 32) peak = fmaxf(peak, score[i]);
        for (int offset = 16; offset; offset >>= 1) peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, offset));
        const float zero = peak == -INFINITY ? 0.0f : peak;
        float sum = 0.0f;
        for (int i = lane; i < count; i += 32) {
          const float weight = exp2_approx(score[i] - zero + weight_bias);
          score[i] = weight;
          sum += weight;
        }
        for (int offset = 16; offset; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        if (lane == 0) shared.peak[first + warp] = peak, shared.sum[first + warp] = sum;
      }
      __syncthreads();

      // Values: a thread has eight columns and every `n_lines`-th position; then lines are added in order.
      const int n_lines = threads / n_chunks, line = threadIdx.x / n_chunks, chunk = threadIdx.x % n_chunks;
      float sum[at_once][8] = {};
      for (int i = line; i < count && line < n_lines; i += n_lines) {
        float value[8];
        load(v_pages, block, start + i, 8 * chunk, value);
#pragma unroll
        for (int h = 0; h < at_once; h++) {
          const float weight = first + h < block.heads ? memory.score[h][i] : 0.0f;
#pragma unroll
          for (int j = 0; j < 8; j++) sum[h][j] = fmaf(weight, value[j], sum[h][j]);
        }
      }
#pragma unroll
      for (int h = 0; h < at_once; h++) {
        if (first + h >= block.heads) break;
#pragma unroll
        for (int j = 0; j < 8; j++) memory.part[threadIdx.x][j] = sum[h][j];
        __syncthreads();
        for (int column = threadIdx.x; column < Dim; column += threads) {
          float all = 0.0f;
          for (int l = 0; l < n_lines && column < 8 * n_chunks; l++)
            all += memory.part[l * n_chunks + column / 8][column % 8];
          shared.values[first + h][column] = all;
        }
        __syncthreads();
      }
    }
  }
};

#define MAKE_F32(DIM, BLOCKS)                                                                                 \
  extern "C" __global__ void __launch_bounds__(threads, BLOCKS) attention_in_f32_##DIM(                    \
      PARAMETERS(void), int type) {                                                                           \
    __shared__ __align__(16) InF32<DIM>::Memory memory;                                                       \
    __shared__ __align__(16) Shared<DIM> shared;                                                              \
    STRUCTS                                                                                                   \
    decode<DIM>(pages, tables, job, shared, InF32<DIM>{k_pages, v_pages, pages, tables, job, type, memory});  \
  }

MAKE_F32(64, 4)
MAKE_F32(128, 3)
MAKE_F32(256, 3)
MAKE_F32(512, 2)
MAKE_F32(576, 2)
