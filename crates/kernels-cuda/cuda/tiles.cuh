// What products by tiles share beside `tensor.cuh`: the rows of a tile, copies to shared memory, products of bytes.
#pragma once

#include "tensor.cuh"

// Rows of activations that a tile has, and where their results go: numbers of rows, or in their order where null.
struct TileRows {
  const uint32_t* from;
  const uint32_t* to;
  int n;  // rows that there are; those behind them repeat the last one and are not stored

  __device__ __forceinline__ size_t source(int i) const {
    i = min(i, n - 1);
    return from ? from[i] : i;
  }
  __device__ __forceinline__ size_t target(int i) const { return to ? to[i] : i; }
};

__device__ __forceinline__ void copy16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(shared_address(to)), "l"(from) : "memory");
}

// The same, or zeros.
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
