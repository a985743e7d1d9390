// Operations on rows of F32 values between the products: embedding lookup, norms, rope, sums, gated activations.
//
// Each element of a result is computed from its own row, in an order that the number of rows does not change.
#include "blocks.cuh"

// The sum over a block of `warps` warps, the same in all threads: lanes in pairs, then warps in order.
template <int warps>
__device__ __forceinline__ float block_sum(float x, float (&partial)[warps]) {
  for (int offset = 16; offset; offset >>= 1) x += __shfl_xor_sync(0xffffffffu, x, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0.0f;
  for (int i = 0; i < warps; i++) sum += partial[i];
  __syncthreads();
  return sum;
}

constexpr int norm_warps = 8;

// out = x / sqrt(mean(x^2) + eps) * weight; one block for each row. weight: [n_cols].
extern "C" __global__ void __launch_bounds__(32 * norm_warps) rms_norm(
    const float* x, int x_stride, const float* weight, float* out, int out_stride, int n_cols, float eps) {
  __shared__ float partial[norm_warps];
  const float* row = x + size_t(blockIdx.x) * x_stride;
  float squares = 0.0f;
  for (int i = threadIdx.x; i < n_cols; i += 32 * norm_warps) squares = fmaf(row[i], row[i], squares);
  squares = block_sum(squares, partial);
  float scale = 1.0f / sqrtf(squares / float(n_cols) + eps);
  float* to = out + size_t(blockIdx.x) * out_stride;
  for (int i = threadIdx.x; i < n_cols; i += 32 * norm_warps) to[i] = row[i] * scale * weight[i];
}

// out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias; one block for each row. weight: [n_cols],
// bias: [n_cols] or null.
extern "C" __global__ void __launch_bounds__(32 * norm_warps) layer_norm(
    const float* x, int x_stride, const float* weight, const float* bias, float* out, int out_stride, int n_cols,
    float eps) {
  __shared__ float partial[norm_warps];
  const float* row = x + size_t(blockIdx.x) * x_stride;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < n_cols; i += 32 * norm_warps) sum += row[i];
  float mean = block_sum(sum, partial) / float(n_cols);
  float squares = 0.0f;
  for (int i = threadIdx.x; i < n_cols; i += 32 * norm_warps) {
    float away = row[i] - mean;
    squares = fmaf(away, away, squares);
  }
  squares = block_sum(squares, partial);
  float scale = 1.0f / sqrtf(squares / float(n_cols) + eps);
  float* to = out + size_t(blockIdx.x) * out_stride;
  for (int i = threadIdx.x; i < n_cols; i += 32 * norm_warps) {
    float y = (row[i] - mean) * scale * weight[i];
    to[i] = bias ? y + bias[i] : y;
  }
}

// Turns pairs of each head in place by the angle of the row's position; one block for each row. x: [n_rows,
// n_heads * head_dim], positions: [n_rows], angles: [n_positions, rotary_dim / 2] of cosine and sine. The pairs
// are neighbours, or lie `rotary_dim / 2` apart.
extern "C" __global__ void __launch_bounds__(128) rope(
    float* x, int x_stride, const uint32_t* positions, const float2* angles, int n_positions, int n_heads,
    int head_dim, int rotary_dim, int neighbours) {
  const int half = rotary_dim / 2;
  const uint32_t position = positions[blockIdx.x];
  if (position >= uint32_t(n_positions)) __trap();
  const float2* turn = angles + size_t(position) * half;
  float* row = x + size_t(blockIdx.x) * x_stride;
  for (int i = threadIdx.x; i < n_heads * half; i += 128) {
    int pair = i % half;
    float* head = row + i / half * head_dim;
    float* a = head + (neighbours ? 2 * pair : pair);
    float* b = neighbours ? a + 1 : a + half;
    float2 t = turn[pair];
    float u = *a, v = *b;
    *a = u * t.x - v * t.y;
    *b = u * t.y + v * t.x;
  }
}

// Rows of a packed matrix by their numbers, as floats; one block for each. ids: [n_batch], out: [n_batch, n_cols].
template <class B>
__device__ __forceinline__ void embed(
    const Planes& w, const uint32_t* ids, float* out, int out_stride, int n_rows, int n_cols) {
  const uint32_t id = ids[blockIdx.x];
  if (id >= uint32_t(n_rows)) __trap();
  const int n_units = (n_cols + B::len - 1) / B::len;
  float* row = out + size_t(blockIdx.x) * out_stride;
  for (int u = threadIdx.x; u < n_units; u += 128) {
    B unit;
    unit.load(w, size_t(id) * n_units + u);
#pragma unroll
    for (int p = 0; p < B::len / 4; p++) {
      const float scale = unit.scale(p * 4 / B::group), min = unit.min(p * 4 / B::group);
      const float4 level = unit.piece(p);
      const float4 v = {scale * level.x - min, scale * level.y - min, scale * level.z - min, scale * level.w - min};
      const int at = u * B::len + 4 * p;
      if (!B::may_end || at + 4 <= n_cols) {
        *reinterpret_cast<float4*>(row + at) = v;
      } else {
        if (at < n_cols) row[at] = v.x;
        if (at + 1 < n_cols) row[at + 1] = v.y;
        if (at + 2 < n_cols) row[at + 2] = v.z;
      }
    }
  }
}

#define MAKE(TYPE, NAME)                                                                                      \
  extern "C" __global__ void __launch_bounds__(128) embed_##NAME(                                             \
      const uint4* main, const uint8_t* high, const uint8_t* head, const uint32_t* ids, float* out,           \
      int out_stride, int n_rows, int n_cols) {                                                               \
    embed<TYPE>({main, high, head}, ids, out, out_stride, n_rows, n_cols);                                    \
  }

FOR_EACH_BLOCK_TYPE(MAKE)

// out = x + y, element by element; a block for 256 columns of a row.
extern "C" __global__ void __launch_bounds__(256) add(
    const float* x, int x_stride, const float* y, int y_stride, float* out, int out_stride, int n_cols) {
  int i = blockIdx.y * 256 + threadIdx.x;
  if (i >= n_cols) return;
  size_t row = blockIdx.x;
  out[row * out_stride + i] = x[row * x_stride + i] + y[row * y_stride + i];
}

__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

// The approximation by tanh: 0.5 * (1 + tanh(y)) is the logistic function of 2 * y.
__device__ __forceinline__ float gelu_tanh(float x) {
  float y = 0.7978845608f * (x + 0.044715f * (x * x) * x);
  return x / (1.0f + expf(-2.0f * y));
}

__device__ __forceinline__ float gelu_erf(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }

// out = activation(gate) * up, element by element; a block for 256 columns of a row.
template <float (*activation)(float)>
__device__ __forceinline__ void glu(
    const float* gate, int gate_stride, const float* up, int up_stride, float* out, int out_stride, int n_cols) {
  int i = blockIdx.y * 256 + threadIdx.x;
  if (i >= n_cols) return;
  size_t row = blockIdx.x;
  out[row * out_stride + i] = activation(gate[row * gate_stride + i]) * up[row * up_stride + i];
}

#define MAKE_GLU(NAME, ACTIVATION)                                                                           \
  extern "C" __global__ void __launch_bounds__(256) NAME(                                                    \
      const float* gate, int gate_stride, const float* up, int up_stride, float* out, int out_stride,        \
      int n_cols) {                                                                                          \
    glu<ACTIVATION>(gate, gate_stride, up, up_stride, out, out_stride, n_cols);                              \
  }

MAKE_GLU(swiglu, silu)
MAKE_GLU(geglu_tanh, gelu_tanh)
MAKE_GLU(geglu_erf, gelu_erf)
