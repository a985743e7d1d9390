// The order of pairs of a row and an expert.
#include <stdint.h>

constexpr int sort_threads = 1024;
constexpr int max_experts = 1024;
constexpr int n_counts = 8192;

// The sum over the threads before this one, and over all.
__device__ __forceinline__ uint32_t sum_before(uint32_t x, uint32_t (&of_warps)[32], uint32_t& all) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t sum = x;
  for (int offset = 1; offset < 32; offset <<= 1) {
    uint32_t before = __shfl_up_sync(0xffffffffu, sum, offset);
    if (lane >= offset) sum += before;
  }
  if (lane == 31) of_warps[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    uint32_t total = of_warps[lane];
    for (int offset = 1; offset < 32; offset <<= 1) {
      uint32_t before = __shfl_up_sync(0xffffffffu, total, offset);
      if (lane >= offset) total += before;
    }
    of_warps[lane] = total;
  }
  __syncthreads();
  all = of_warps[31];
  sum += warp ? of_warps[warp - 1] : 0;
  __syncthreads();
  return sum - x;
}

// Sorts the pairs of some rows by expert, in tiles of up to `tile_rows`; one block. Pairs of the expert -1 are left
// out. order: the pairs by place. Some warps have a part of the pairs each: they count, and go through them again when
// the places are known.
extern "C" __global__ void __launch_bounds__(sort_threads) sort_by_expert(
    const float* routes, int route_stride, int n_pairs, int n_chosen, int n_experts, int tile_rows, uint4* tiles,
    uint32_t* order, int max_tiles) {
  __shared__ uint32_t counts[n_counts];  // [n_parts, n_experts], then the next places
  __shared__ uint32_t places[max_experts + 1], first_tiles[max_experts + 1], of_warps[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, e = threadIdx.x;
  const int n_parts = min(min(sort_threads / 32, n_counts / n_experts), (n_pairs + 31) / 32);
  const int part_len = ((n_pairs + n_parts - 1) / n_parts + 31) / 32 * 32;
  const int begin = warp < n_parts ? min(warp * part_len, n_pairs) : n_pairs;
  const int end = min(begin + part_len, n_pairs);
  uint32_t* own = counts + warp * n_experts;

  auto expert_of = [&](int pair) {
    const float id = routes[size_t(pair / n_chosen) * route_stride + pair % n_chosen];
    if (id < 0.0f) return 0xffffffffu;
    if (!(id < float(n_experts))) __trap();
    return uint32_t(id);
  };

  for (int i = threadIdx.x; i < n_parts * n_experts; i += sort_threads) counts[i] = 0;
  __syncthreads();
  for (int pair = begin + lane; pair < end; pair += 32) {
    const uint32_t expert = expert_of(pair);
    if (expert != 0xffffffffu) atomicAdd(own + expert, 1);
  }
  __syncthreads();

  // A thread has an expert: the places before its pairs, those of each part among them, and the tiles before its own.
  uint32_t total = 0, n_placed, n_tiles;
  if (e < n_experts) {
    for (int p = 0; p < n_parts; p++) total += counts[p * n_experts + e];
  }
  uint32_t place = sum_before(total, of_warps, n_placed);
  const uint32_t tile = sum_before((total + tile_rows - 1) / tile_rows, of_warps, n_tiles);
  if (e < n_experts) {
    places[e] = place, first_tiles[e] = tile;
    for (int p = 0; p < n_parts; p++) {
      const uint32_t n = counts[p * n_experts + e];
      counts[p * n_experts + e] = place;
      place += n;
    }
  }
  if (e == 0) places[n_experts] = n_placed, first_tiles[n_experts] = n_tiles;
  if (n_tiles > uint32_t(max_tiles)) __trap();
  __syncthreads();

  for (int start = begin; start < end; start += 32) {
    const int pair = start + lane;
    const uint32_t expert = pair < end ? expert_of(pair) : 0xffffffffu;
    // Lanes of one expert take places in their order.
    const uint32_t same = __match_any_sync(0xffffffffu, expert);
    const int rank = __popc(same & ((1u << lane) - 1));
    if (expert != 0xffffffffu) order[own[expert] + rank] = uint32_t(pair);
    __syncwarp();
    if (expert != 0xffffffffu && rank == 0) own[expert] += __popc(same);
    __syncwarp();
  }

  if (threadIdx.x == 0) tiles[0] = {n_tiles, 0, 0, 0};
  for (uint32_t t = threadIdx.x; t < n_tiles; t += sort_threads) {
    // The last expert whose tiles begin at or before this one has it.
    int low = 0, high = n_experts;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (first_tiles[middle] <= t) {
        low = middle;
      } else {
        high = middle;
      }
    }
    const uint32_t first = places[low] + (t - first_tiles[low]) * tile_rows;
    tiles[1 + t] = {uint32_t(low), first, min(uint32_t(tile_rows), places[low + 1] - first), 0};
  }
}
