// What ranks have exchanged: rows of each rank, one rank's behind the other's, `part_len` values apart. A block for
// 256 columns of a row.
#include <cstddef>

// out = the sum over the ranks in their order, and then the residual, which may be absent.
extern "C" __global__ void __launch_bounds__(256) sum_ranks(
    const float* parts, int part_len, int part_stride, const float* residual, int residual_stride, float* out,
    int out_stride, int n_cols, int n_ranks) {
  const int i = blockIdx.y * 256 + threadIdx.x;
  const size_t row = blockIdx.x;
  if (i >= n_cols) return;
  const float* part = parts + row * part_stride + i;
  float sum = part[0];
  for (int rank = 1; rank < n_ranks; ++rank) sum += part[size_t(rank) * part_len];
  if (residual != nullptr) sum += residual[row * residual_stride + i];
  out[row * out_stride + i] = sum;
}

// out = the columns of all ranks side by side, `n_cols` of each.
extern "C" __global__ void __launch_bounds__(256) join_ranks(
    const float* parts, int part_len, int part_stride, float* out, int out_stride, int n_cols) {
  const int i = blockIdx.y * 256 + threadIdx.x;
  const size_t row = blockIdx.x, rank = blockIdx.z;
  if (i >= n_cols) return;
  out[row * out_stride + rank * n_cols + i] = parts[rank * part_len + row * part_stride + i];
}
