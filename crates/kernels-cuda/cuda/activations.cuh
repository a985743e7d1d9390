// Activation functions, and gates.
//
// Finite arguments of any size give the function's limits: where an exponential overflows, it is in a divisor. What is not a
// number stays so.
#pragma once

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

__device__ __forceinline__ float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }

// The approximation by tanh: 0.5 * (1 + tanh(y)) is the logistic function of 2 * y.
__device__ __forceinline__ float gelu_tanh(float x) {
  float y = 0.7978845608f * (x + 0.044715f * (x * x) * x);
  return x / (1.0f + expf(-2.0f * y));
}

__device__ __forceinline__ float gelu_quick(float x) { return x / (1.0f + expf(-1.702f * x)); }

// Not fmaxf, which would make a number of what is none.
__device__ __forceinline__ float relu(float x) { return x < 0.0f ? 0.0f : x; }

__device__ __forceinline__ float relu_squared(float x) { return relu(x) * relu(x); }

__device__ __forceinline__ float tanh_of(float x) { return tanhf(x); }

// tanh(ln(1 + e)) is e * (e + 2) / (e * (e + 2) + 2), which is 1 to the last bit where e is the exponential of 20.
__device__ __forceinline__ float mish(float x) {
  float e = expf(fminf(x, 20.0f));
  float n = e * (e + 2.0f);
  return x * (n / (n + 2.0f));
}

// The functions with their names in kernels, in the order of `Activation::ALL`.
#define FOR_EACH_ACTIVATION(MAKE)  \
  MAKE(silu, silu)                 \
  MAKE(gelu, gelu)                 \
  MAKE(gelu_tanh, gelu_tanh)       \
  MAKE(gelu_quick, gelu_quick)     \
  MAKE(relu, relu)                 \
  MAKE(relu_squared, relu_squared) \
  MAKE(tanh_of, tanh)              \
  MAKE(sigmoid, sigmoid)           \
  MAKE(mish, mish)

// A function by its index in `Activation::ALL`; any other index is the identity.
__device__ __forceinline__ float activate(int act, float x) {
  switch (act) {
    case 0: return silu(x);
    case 1: return gelu(x);
    case 2: return gelu_tanh(x);
    case 3: return gelu_quick(x);
    case 4: return relu(x);
    case 5: return relu_squared(x);
    case 6: return tanh_of(x);
    case 7: return sigmoid(x);
    case 8: return mish(x);
    default: return x;
  }
}

// A matrix of 2 * `n_rows` rows, which are those of a gate and of what it lets through, and what becomes of their products.
struct Gate {
  const float* bias;  // [2 * n_rows] or null
  bool up_first;      // whether the gate's rows are the last ones of the matrix
  int act;            // as `activate` has it
  float* out;         // [n_batch, n_rows]
  int out_stride, n_rows;

  __device__ __forceinline__ int gate_row(int row) const { return up_first ? row + n_rows : row; }
  __device__ __forceinline__ int up_row(int row) const { return up_first ? row : row + n_rows; }
  __device__ __forceinline__ float result(int row, float gate, float up) const {
    if (bias) gate += bias[gate_row(row)], up += bias[up_row(row)];
    return activate(act, gate) * up;
  }
  __device__ __forceinline__ void store(int col, int row, float result) const {
    out[size_t(col) * out_stride + row] = result;
  }
};
