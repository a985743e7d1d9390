// Pairs of a row and one of its experts: pair number `row * n_chosen + slot` is of the expert in place `slot` of the
// row's routes. Sorted by expert they come in tiles of one expert each; within an expert they keep their order.
#pragma once

#include <stdint.h>

struct Pairs {
  const float* routes;  // [n_rows, 2 * n_chosen]: experts, then factors
  int route_stride;
  const uint4* tiles;     // the number of tiles; then of each its expert, its first place in `order`, and its pairs
  const uint32_t* order;  // pairs by place
  int n_chosen, n_experts;
};

// Up to `Cols` pairs of an expert.
template <int Cols>
struct Group {
  uint32_t expert;
  int count;
  uint32_t pair[Cols];  // behind the last one, the last one again

  // Pair `index`, or the pairs of tile `index`; false if there are none.
  __device__ __forceinline__ bool find(const Pairs& pairs, uint32_t index) {
    if constexpr (Cols == 1) {
      const float id = pairs.routes[size_t(index / pairs.n_chosen) * pairs.route_stride + index % pairs.n_chosen];
      if (id < 0.0f) return false;
      if (!(id < float(pairs.n_experts))) __trap();
      expert = uint32_t(id), count = 1, pair[0] = index;
    } else {
      if (index >= pairs.tiles[0].x) return false;
      const uint4 tile = pairs.tiles[1 + index];
      expert = tile.x, count = int(tile.z);
#pragma unroll
      for (int c = 0; c < Cols; c++) pair[c] = pairs.order[tile.y + ::min(c, count - 1)];
    }
    return true;
  }
};
