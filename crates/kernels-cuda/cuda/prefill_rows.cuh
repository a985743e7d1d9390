// Where prefill rows go for the product behind them, in BF16.
#pragma once

#include "halves.cuh"
#include "tensor.cuh"

struct PrefillRows {
  uint32_t* values;  // null for none
  int stride;        // elements from one row to the next, or in the order of groups of warps the rows that there is room for
  bool in_groups;

  // Columns that are stored of a row, with the zeros behind it.
  __device__ __forceinline__ int reach(int n_cols) const {
    const int padding = in_groups ? group_padding : half_padding;
    return (n_cols + padding - 1) / padding * padding;
  }

  // Two values of a row, the first of them at an even column.
  __device__ __forceinline__ void store(size_t row, int col, float a, float b) const {
    *place(row, col) = pack2<__nv_bfloat16>(a, b);
  }

  __device__ __forceinline__ uint32_t* place(size_t row, int col) const {
    if (!in_groups) return values + (row * stride + col) / 2;
    const int step = col / 128 * 8 + col % 32 / 4, c = col % 128 / 32;
    return reinterpret_cast<uint32_t*>(group_piece(reinterpret_cast<uint4*>(values), stride, row, step, col % 4 / 2)) + c;
  }
};
