// Rows of tables by their numbers, and of values by theirs.
#include "blocks.cuh"

// Rows of a packed matrix as floats, times `scale`; one block for each. A row whose number is ~0 is left as it is.
// ids: [n_batch], out: [n_batch, n_cols].
template <class B>
__device__ __forceinline__ void embed(
    const Planes& w, const uint32_t* ids, float* out, int out_stride, int n_rows, int n_cols, float scale) {
  const uint32_t id = ids[blockIdx.x];
  if (id == ~0u) return;
  if (id >= uint32_t(n_rows)) __trap();
  const int n_units = (n_cols + B::len - 1) / B::len;
  float* row = out + size_t(blockIdx.x) * out_stride;
  for (int u = threadIdx.x; u < n_units; u += 128) {
    B unit;
    unit.load(w, size_t(id) * n_units + u);
#pragma unroll
    for (int p = 0; p < B::len / 4; p++) {
      const float d = unit.scale(p * 4 / B::group), min = unit.min(p * 4 / B::group);
      const float4 level = unit.piece(p);
      const float v[4] = {d * level.x - min, d * level.y - min, d * level.z - min, d * level.w - min};
      const int at = u * B::len + 4 * p;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (!B::may_end || at + i < n_cols) row[at + i] = scale * v[i];
      }
    }
  }
}

#define MAKE(TYPE, NAME)                                                                            \
  extern "C" __global__ void __launch_bounds__(128) embed_##NAME(                                   \
      const uint4* main, const uint8_t* high, const uint8_t* head, const uint32_t* ids, float* out, \
      int out_stride, int n_rows, int n_cols, float scale) {                                        \
    embed<TYPE>({main, high, head}, ids, out, out_stride, n_rows, n_cols, scale);                   \
  }

FOR_EACH_BLOCK_TYPE(MAKE)

// out[i] = x[numbers[i]]; a block for 256 columns of a row. x: [n_from, n_cols], numbers: [n_batch].
extern "C" __global__ void __launch_bounds__(256) select_rows(
    const float* x, int x_stride, const uint32_t* numbers, float* out, int out_stride, int n_from, int n_cols) {
  const int i = blockIdx.y * 256 + threadIdx.x;
  const uint32_t from = numbers[blockIdx.x];
  if (from >= uint32_t(n_from)) __trap();
  if (i < n_cols) out[size_t(blockIdx.x) * out_stride + i] = x[size_t(from) * x_stride + i];
}
