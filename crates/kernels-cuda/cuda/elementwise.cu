// Operations on the single elements of rows; a block for 256 columns of a row.
#include <cstdint>

#include "activations.cuh"

// out = result, which says what becomes of x and y.
#define OF_TWO(NAME, RESULT)                                                                            \
  extern "C" __global__ void __launch_bounds__(256) NAME(                                               \
      const float* x_rows, int x_stride, const float* y_rows, int y_stride, float* out, int out_stride, \
      int n_cols) {                                                                                     \
    const int i = blockIdx.y * 256 + threadIdx.x;                                                       \
    const size_t row = blockIdx.x;                                                                      \
    if (i >= n_cols) return;                                                                            \
    const float x = x_rows[row * x_stride + i], y = y_rows[row * y_stride + i];                         \
    out[row * out_stride + i] = RESULT;                                                                 \
  }

// out = result, which says what becomes of x, with two constants.
#define OF_ONE(NAME, RESULT)                                                                              \
  extern "C" __global__ void __launch_bounds__(256) NAME(                                                 \
      const float* x_rows, int x_stride, float* out, int out_stride, int n_cols, float a, float b) {      \
    const int i = blockIdx.y * 256 + threadIdx.x;                                                         \
    const size_t row = blockIdx.x;                                                                        \
    if (i >= n_cols) return;                                                                              \
    const float x = x_rows[row * x_stride + i];                                                           \
    out[row * out_stride + i] = RESULT;                                                                   \
  }

OF_TWO(add, x + y)
OF_TWO(mul, x * y)
OF_ONE(scale, x * a)
OF_ONE(softcap, a * tanhf(x / a))
// A number that is none stays so.
OF_ONE(clamp_to, x < a ? a : x > b ? b : x)

#define MAKE(FUNCTION, NAME)              \
  OF_ONE(act_##NAME, FUNCTION(x))         \
  OF_TWO(gated_##NAME, FUNCTION(x) * y)

FOR_EACH_ACTIVATION(MAKE)
