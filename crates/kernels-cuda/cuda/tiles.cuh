// What products by tiles share beside `tensor.cuh`: the rows of a tile, copies to shared memory, products of bytes.
#pragma once

#include "tensor.cuh"

// Rows of activations that a tile has.
struct TileRows {
  const uint32_t* from;  // numbers of rows, or null: then they are in their order
  int n;                 // rows that there are; those behind them repeat the last one and are not stored

  __device__ __forceinline__ size_t source(int i) const {
    i = min(i, n - 1);
    return from ? from[i] : i;
  }
};

// What a product ends with.
struct Ends {
  const float* bias;      // [n_rows] or null
  const float* residual;  // [n_batch, n_rows] or null
  int residual_stride;
  float* out;  // [n_batch, n_rows]; it may be `residual`
  int out_stride, n_rows, n_batch;

  // Stores the sums of some rows of activations, `col_of(c)`, and some rows of the matrix, `row + offset(i)`, where both
  // exist. What is added to all of them is on its way at once.
  template <int cols, int rows, class C, class O>
  __device__ __forceinline__ void store(float (&sum)[cols][rows], const C& col_of, int row, const O& offset) const {
    const int left = n_rows - row;
    if (bias) {
      float more[rows];
#pragma unroll
      for (int i = 0; i < rows; i++) more[i] = offset(i) < left ? bias[row + offset(i)] : 0.0f;
#pragma unroll
      for (int i = 0; i < cols * rows; i++) sum[i / rows][i % rows] += more[i % rows];
    }
    if (residual) {
      float more[cols][rows];
#pragma unroll
      for (int c = 0; c < cols; c++) {
        const float* from = residual + (size_t(col_of(c)) * residual_stride + row);
#pragma unroll
        for (int i = 0; i < rows; i++)
          more[c][i] = col_of(c) < n_batch && offset(i) < left ? from[offset(i)] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < cols * rows; i++) sum[i / rows][i % rows] += more[i / rows][i % rows];
    }
#pragma unroll
    for (int c = 0; c < cols; c++) {
      if (col_of(c) >= n_batch) continue;
      float* to = out + (size_t(col_of(c)) * out_stride + row);
#pragma unroll
      for (int i = 0; i < rows; i++) {
        if (offset(i) < left) to[offset(i)] = sum[c][i];
      }
    }
  }
};

// The sums of a warp's fragments by rows of activations: calls `f` with each of these, as `first_x` counts them, and its
// sums. Number `i` is that of row `fragment_row() + fragment_offset(i)` of the matrix.
template <int MT, int NT, class F>
__device__ __forceinline__ void each_row(const float (&sum)[MT][NT][4], int first_x, const F& f) {
#pragma unroll
  for (int i = 0; i < 2 * MT; i++) {
    float of_row[1][2 * NT];
#pragma unroll
    for (int j = 0; j < 2 * NT; j++) of_row[0][j] = sum[i / 2][j / 2][i % 2 * 2 + j % 2];
    f(first_x + threadIdx.x % 32 / 4 + 8 * i, of_row);
  }
}
__device__ __forceinline__ int fragment_row() { return threadIdx.x % 4 * 2; }
__device__ __forceinline__ constexpr int fragment_offset(int i) { return 8 * (i / 2) + i % 2; }

// Calls `f` with every `threads`-th number below `n`, starting at the thread's index. Unlike in a loop from that index to `n`, the
// number of iterations is a constant: the compiler unrolls them and hoists their addresses.
template <int n, int threads, class F>
__device__ __forceinline__ void each_of_thread(const F& f) {
#pragma unroll
  for (int i = 0; i < (n + threads - 1) / threads; i++) {
    const int at = threadIdx.x + i * threads;
    if (n % threads == 0 || at < n) f(at);
  }
}

// Copies 16 bytes to shared memory on their own, or zeros.
__device__ __forceinline__ void copy16(void* to, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)), "l"(from),
               "r"(inside ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void copy8(void* to, const void* from, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;\n" ::"r"(shared_address(to)), "l"(from),
               "r"(inside ? 8 : 0)
               : "memory");
}

// Waits until all but the last `n` groups of copies of this thread are done.
template <int n>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(n) : "memory");
}

// Four matrices of 8 rows of 16 bytes; lane `i` has the address of row `i % 8` of matrix `i / 8`.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* row) {
  load_matrices(r, shared_address(row));
}

// Products of bytes are added to these bits, which are those of 1.5 * 2^23 as a float: the bits of a sum are then that
// number and the sum, while it has at most 22 bits.
constexpr int sum_base = 0x4b400000;

__device__ __forceinline__ float float_of_sum(int sum) { return __int_as_float(sum) - 12582912.0f; }

// a b^T of a 16 x 32 and an 8 x 32 matrix of bytes, over `sum_base`.
__device__ __forceinline__ void multiply_32(int (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %10, %10, %10};\n"
      : "=r"(sum[0]), "=r"(sum[1]), "=r"(sum[2]), "=r"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(sum_base));
}

// The same of a 16 x 16 and an 8 x 16 matrix.
__device__ __forceinline__ void multiply_16(int (&sum)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};\n"
      : "=r"(sum[0]), "=r"(sum[1]), "=r"(sum[2]), "=r"(sum[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(sum_base));
}
