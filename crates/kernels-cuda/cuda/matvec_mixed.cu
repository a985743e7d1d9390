// Products of up to three packed matrices of different types with the same few rows of 8-bit activations, in one launch.
// Files of K types mix these within a layer.
#include "matvec_int8.cuh"

using namespace with_quants;

#define FOR_EACH_K_TYPE(CASE) \
  CASE(Q2_K, q2_k)            \
  CASE(Q3_K, q3_k)            \
  CASE(Q4_K, q4_k)            \
  CASE(Q5_K, q5_k)            \
  CASE(Q6_K, q6_k)

// A matrix of a launch that has several of different types: its results follow on those of the one in front of it.
struct Part {
  Planes planes;
  int type, n_rows;
};

template <int Cols>
__device__ __forceinline__ void mixed(const Part (&part)[3], const Step& step) {
  // Blocks of the grid are those of the matrices in turn.
  int block = blockIdx.y, out_at = 0, i = 0;
  for (; i < 2; i++) {
    const int n_blocks = (part[i].n_rows + warps * Rows - 1) / (warps * Rows);
    if (block < n_blocks) break;
    block -= n_blocks;
    out_at += part[i].n_rows;
  }
  const Part& p = part[i];
  const int first_row = (block * warps + threadIdx.y) * Rows;
  int type = 0;
#define CASE(TYPE, NAME) \
  if (p.type == type++) return matvec<TYPE, Cols>(p.planes, step, first_row, p.n_rows, out_at);
  FOR_EACH_K_TYPE(CASE)
#undef CASE
}

// Types are indices in FOR_EACH_K_TYPE; a matrix that is not there has no rows.
#define MAKE_MIXED(COLS)                                                                                           \
  extern "C" __global__ void __launch_bounds__(32 * warps, 4) matvec_int8_mixed_##COLS(                              \
      const uint4* main_0, const uint8_t* high_0, const uint8_t* head_0, const uint4* main_1,                     \
      const uint8_t* high_1, const uint8_t* head_1, const uint4* main_2, const uint8_t* high_2,                   \
      const uint8_t* head_2, int type_0, int type_1, int type_2, int n_rows_0, int n_rows_1, int n_rows_2,        \
      const uint4* quants, const uint2* blocks, int x_stride, const float* bias, const float* residual,           \
      int residual_stride, float* out, int out_stride, int n_cols, int n_batch) {                                 \
    const Step step = {{quants, blocks, x_stride}, bias,   residual, residual_stride, out, out_stride,            \
                       n_cols,                     n_batch};                                                      \
    const Part part[3] = {{{main_0, high_0, head_0}, type_0, n_rows_0},                                           \
                          {{main_1, high_1, head_1}, type_1, n_rows_1},                                           \
                          {{main_2, high_2, head_2}, type_2, n_rows_2}};                                          \
    mixed<COLS>(part, step);                                                                                      \
  }

MAKE_MIXED(1)
MAKE_MIXED(2)
MAKE_MIXED(4)
