// Rows of activations in half precision, as products of prefill rows take them: row by row (`matmul_half.cuh`), or in the order
// of groups of warps (`matmul_wgmma.cuh`).
#pragma once

#include <stdint.h>

constexpr int half_padding = 64;    // rows are filled up with zeros to a multiple of this
constexpr int group_padding = 128;  // the same in the order of groups of warps: columns of a span

// A span has eight steps, of which step j has columns 32 c + 4 j to 32 c + 4 j + 3, for c from 0 to 3: the first two of each c
// are a piece of 16 bytes, and the last two the next one. Four steps are a stage, of which `n_rows` rows are neighbours, with
// eight pieces each; piece `i` of a row lies at `i ^ row % 8`, which is how products swizzle rows of 128 bytes. Steps are
// counted through all spans, and `half` tells which piece it is.
__device__ __forceinline__ uint4* group_piece(uint4* all, int n_rows, int row, int step, int half) {
  return all + (size_t(step / 4) * n_rows + row) * 8 + ((step % 4 * 2 + half) ^ row % 8);
}
