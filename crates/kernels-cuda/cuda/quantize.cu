// Rows of F32 values in a form that products take: as they are or behind what comes before a product, which is a norm, an
// activation, or a gated activation. Rows are whole blocks of 32.
#include "activations.cuh"
#include "blocks.cuh"
#include "prefill_rows.cuh"
#include "quantized.cuh"

constexpr int warps = 4;  // of a block of single elements
constexpr int norm_warps = 16;

__device__ __forceinline__ float4 four(const float* row, int col) {
  return *reinterpret_cast<const float4*>(row + col);
}

// Forms of rows: blocks as 8-bit integers, in BF16 (`BlockRows`), and BF16 as products of prefill rows take it.
enum Form { blocks_int8, blocks_bf16, rows_bf16, groups_bf16 };

// Where rows go.
struct FormRows {
  uint32_t* values;
  uint2* heads;  // of blocks
  int stride;    // blocks or elements from one row to the next, or rows that there is room for
  int form;

  __device__ __forceinline__ BlockRows blocks() const { return {values, heads, stride, form == blocks_bf16}; }
  __device__ __forceinline__ PrefillRows rows() const { return {values, stride, form == groups_bf16}; }

  // Columns that are stored of a row, with the zeros behind it.
  __device__ __forceinline__ int reach(int n_cols) const {
    return form < rows_bf16 ? blocks().reach(n_cols) : rows().reach(n_cols);
  }

  // Stores four values of a row, as `BlockRows` does.
  __device__ __forceinline__ void store(size_t row, float4 v, int col, bool inside) const {
    if (form < rows_bf16) return blocks().store(row, v, col, inside);
    if (inside) rows().store(row, col, v.x, v.y), rows().store(row, col + 2, v.z, v.w);
  }
};

// A block for 512 columns of a row. values, heads, stride, form: as `FormRows` has them.
extern "C" __global__ void __launch_bounds__(32 * warps) quantize(
    const float* x, int x_stride, uint32_t* values, uint2* heads, int stride, int form, int n_cols) {
  const size_t row = blockIdx.x;
  const int col = (blockIdx.y * 32 * warps + threadIdx.x) * 4;
  const float4 v = col < n_cols ? four(x + row * x_stride, col) : float4{};
  const FormRows to = {values, heads, stride, form};
  to.store(row, v, col, col < to.reach(n_cols));
}

// The same of activation(gate) * up, or of activation(gate) where `up` is null. The values go to `out`, too, if there
// is one.
extern "C" __global__ void __launch_bounds__(32 * warps) quantize_activated(
    const float* gate, int gate_stride, const float* up, int up_stride, int act, float* out, int out_stride,
    uint32_t* values, uint2* heads, int stride, int form, int n_cols) {
  const size_t row = blockIdx.x;
  const int col = (blockIdx.y * 32 * warps + threadIdx.x) * 4;
  float4 v = {};
  if (col < n_cols) {
    float4 g = four(gate + row * gate_stride, col);
    v = {activate(act, g.x), activate(act, g.y), activate(act, g.z), activate(act, g.w)};
    if (up) {
      float4 u = four(up + row * up_stride, col);
      v = {v.x * u.x, v.y * u.y, v.z * u.z, v.w * u.w};
    }
    if (out) *reinterpret_cast<float4*>(out + row * out_stride + col) = v;
  }
  const FormRows to = {values, heads, stride, form};
  to.store(row, v, col, col < to.reach(n_cols));
}

// The sum over a block, the same in all threads: lanes in pairs, then warps in order.
__device__ __forceinline__ float block_sum(float x, float (&partial)[norm_warps]) {
  for (int offset = 16; offset; offset >>= 1) x += __shfl_xor_sync(0xffffffffu, x, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0.0f;
  for (int i = 0; i < norm_warps; i++) sum += partial[i];
  __syncthreads();
  return sum;
}

// The same of a norm of whole rows, a block for each: (x - mean) / sqrt(variance + eps) * weight + bias; without
// `centered`, the mean is taken for zero. weight, bias: [n_cols] or null.
template <bool centered>
__device__ __forceinline__ void quantize_norm(
    const float* x, int x_stride, const float* weight, const float* bias, float eps, float* out, int out_stride,
    const FormRows& to, int n_cols) {
  __shared__ float partial[norm_warps];
  constexpr int step = 32 * norm_warps * 4, kept = 2;  // pieces of a row that a thread reads once
  const size_t row = blockIdx.x;
  x += row * x_stride;
  const int first = threadIdx.x * 4;
  const bool aligned = uintptr_t(weight) % 16 == 0 && n_cols % 4 == 0;
  auto piece = [&](const float* of, int col) {
    return aligned ? *reinterpret_cast<const float4*>(of + col) : float4{of[col], of[col + 1], of[col + 2], of[col + 3]};
  };
  float4 own[kept], factor[kept];
#pragma unroll
  for (int i = 0; i < kept; i++) {
    const int col = i * step + first;
    if (weight && col < n_cols) factor[i] = piece(weight, col);
  }
  wait_for_launch();
#pragma unroll
  for (int i = 0; i < kept; i++) {
    const int col = i * step + first;
    own[i] = col < n_cols ? four(x, col) : float4{};
  }
  float mean = 0.0f;
  if (centered) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kept; i++) sum += (own[i].x + own[i].y) + (own[i].z + own[i].w);
    for (int col = kept * step + first; col < n_cols; col += step) {
      float4 v = four(x, col);
      sum += (v.x + v.y) + (v.z + v.w);
    }
    mean = block_sum(sum, partial) / float(n_cols);
  }
  auto centre = [&](float4 v) {
    return centered ? float4{v.x - mean, v.y - mean, v.z - mean, v.w - mean} : v;
  };
  float squares = 0.0f;
  auto add = [&](float4 v) {
    v = centre(v);
    squares = fmaf(v.x, v.x, squares);
    squares = fmaf(v.y, v.y, squares);
    squares = fmaf(v.z, v.z, squares);
    squares = fmaf(v.w, v.w, squares);
  };
#pragma unroll
  for (int i = 0; i < kept; i++) {
    if (i * step + first < n_cols) add(own[i]);
  }
  for (int col = kept * step + first; col < n_cols; col += step) add(four(x, col));
  const float scale = 1.0f / sqrtf(block_sum(squares, partial) / float(n_cols) + eps);
  // Every lane of a warp takes part, also where its columns are behind the end.
  auto store = [&](float4 v, float4 w, int col) {
    if (col < n_cols) {
      v = centre(v);
      v = {v.x * scale, v.y * scale, v.z * scale, v.w * scale};
      if (weight) v = {v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w};
      if (bias) v = {v.x + bias[col], v.y + bias[col + 1], v.z + bias[col + 2], v.w + bias[col + 3]};
      if (out) *reinterpret_cast<float4*>(out + row * out_stride + col) = v;
    } else {
      v = {};
    }
    to.store(row, v, col, col < to.reach(n_cols));
  };
#pragma unroll
  for (int i = 0; i < kept; i++) {
    if (i * step < n_cols) store(own[i], factor[i], i * step + first);
  }
  for (int start = kept * step; start < n_cols; start += step) {
    const int col = start + first;
    float4 v = {}, w = {};
    if (col < n_cols) v = four(x, col);
    if (weight && col < n_cols) w = piece(weight, col);
    store(v, w, col);
  }
}

#define MAKE(NAME, CENTERED)                                                                                      \
  extern "C" __global__ void __launch_bounds__(32 * norm_warps) NAME(                                             \
      const float* x, int x_stride, const float* weight, const float* bias, float eps, float* out, int out_stride, \
      uint32_t* values, uint2* heads, int stride, int form, int n_cols) {                                      \
    quantize_norm<CENTERED>(x, x_stride, weight, bias, eps, out, out_stride, {values, heads, stride, form}, n_cols); \
  }

MAKE(quantize_rms_norm, false)
MAKE(quantize_layer_norm, true)
