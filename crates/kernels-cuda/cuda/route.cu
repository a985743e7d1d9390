// The choice of experts for each row by the scores of its router, and the sum of what they give.
//
// Routes of a row are the numbers of its experts, ascending, and then their factors. A row that takes no part has -1 for
// each of its experts: products leave it out, and its sum is zero.
#include <stdint.h>

constexpr uint32_t all_lanes = 0xffffffffu;
constexpr uint32_t none = 0xffffffffu;
constexpr int warps = 4;  // of a block, each with a row of scores

enum Scoring { softmax = 0, sigmoid = 1, softmax_of_chosen = 2, sparse_mixer = 3 };

// Bits that are ordered as the numbers are. What is not a number comes before all, and nothing is zero.
__device__ __forceinline__ uint32_t ordered(float x) {
  if (x != x) return 1;
  // Of the two zeros one is less by its bits.
  uint32_t bits = __float_as_uint(x + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float warp_sum(float x) {
  for (int offset = 16; offset; offset >>= 1) x += __shfl_xor_sync(all_lanes, x, offset);
  return x;
}

__device__ __forceinline__ float warp_max(float x) {
  for (int offset = 16; offset; offset >>= 1) x = fmaxf(x, __shfl_xor_sync(all_lanes, x, offset));
  return x;
}

// The experts of a row by a warp; a lane has `N` experts that follow one another. scores: [n_rows, n_experts], bias:
// [n_experts] or null, active: [n_rows] or null, out: [n_rows, 2 * n_chosen]. A row whose number in `active` is
// 0xffffffff takes no part. With `n_groups` groups of neighbouring experts, only the `n_open` groups with the largest
// sums of their `n_best` best, one or two, are chosen from.
template <int N>
__device__ __forceinline__ void route(
    const float* scores, int score_stride, const float* bias, const uint32_t* active, float* out, int out_stride,
    int n_rows, int n_experts, int n_chosen, int scoring, int n_groups, int n_open, int n_best, int normalize,
    float scale, float margin) {
  const int lane = threadIdx.x, first = lane * N;
  const size_t row = size_t(blockIdx.x) * warps + threadIdx.y;
  if (row >= n_rows) return;
  float* ids = out + row * out_stride;
  float* weights = ids + n_chosen;
  if (active && active[row] == none) {
    for (int i = lane; i < n_chosen; i += 32) ids[i] = -1.0f, weights[i] = 0.0f;
    return;
  }

  // Scores become factors.
  float factor[N];
  float top = -INFINITY;
  bool is_number = true;
#pragma unroll
  for (int i = 0; i < N; i++) {
    factor[i] = first + i < n_experts ? scores[row * score_stride + first + i] : -INFINITY;
    top = fmaxf(top, factor[i]);
    is_number &= factor[i] == factor[i];
  }
  is_number = __all_sync(all_lanes, is_number);
  if (scoring == softmax) {
    top = warp_max(top);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) {
      factor[i] = first + i < n_experts ? expf(factor[i] - top) : 0.0f;
      sum += factor[i];
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int i = 0; i < N; i++) factor[i] /= sum;
  } else if (scoring == sigmoid) {
#pragma unroll
    for (int i = 0; i < N; i++) factor[i] = 1.0f / (1.0f + expf(-factor[i]));
  }

  // Keys that the choice is made by; those behind the last expert are chosen last.
  uint32_t key[N];
  float plain[N];
#pragma unroll
  for (int i = 0; i < N; i++) {
    plain[i] = factor[i];
    if (bias && first + i < n_experts) plain[i] += bias[first + i];
    key[i] = first + i < n_experts ? ordered(plain[i]) : 0;
  }

  if (n_groups > 0) {
    __shared__ float keys[warps][32 * N], totals[warps][32 * N];
    float* of_row = keys[threadIdx.y];
    float* total = totals[threadIdx.y];
    const int len = n_experts / n_groups;
#pragma unroll
    for (int i = 0; i < N; i++)
      if (first + i < n_experts) of_row[first + i] = plain[i];
    __syncwarp();
    for (int g = lane; g < n_groups; g += 32) {
      float best = -INFINITY, second = -INFINITY;
      for (int e = g * len; e < g * len + len; e++) {
        float x = of_row[e];
        if (x > best) {
          second = best, best = x;
        } else if (x > second) {
          second = x;
        }
      }
      total[g] = min(len, n_best) > 1 ? best + second : best;
    }
    __syncwarp();
    // A group is open if fewer come before it than are open.
#pragma unroll
    for (int i = 0; i < N; i++) {
      const int g = min(first + i, n_experts - 1) / len;
      const float own = total[g];
      int n_better = 0;
      // Experts of a lane are mostly of one group.
      if (i > 0 && g == min(first + i - 1, n_experts - 1) / len) {
        n_better = key[i - 1] == 0 ? n_open : 0;
      } else {
        for (int other = 0; other < n_groups; other++)
          n_better += total[other] > own || (total[other] == own && other < g);
      }
      if (n_better >= n_open) key[i] = 0;
    }
  }

  // The best that is left, again and again: lanes have experts in order, so the first of equals is in the first lane.
  uint32_t chosen = 0;
  for (int n = 0; n < n_chosen; n++) {
    uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < N; i++) best = max(best, key[i]);
    const uint32_t most = __reduce_max_sync(all_lanes, best);
    const uint32_t holders = __ballot_sync(all_lanes, best == most);
    const int holder = __ffs(holders) - 1;
    // The part of the best in a softmax over those left that are near it.
    float part = 0.0f;
    if (scoring == sparse_mixer) {
      float own = 0.0f;
#pragma unroll
      for (int i = N - 1; i >= 0; i--)
        if (key[i] == most) own = factor[i];
      const float best_score = __shfl_sync(all_lanes, own, holder);
      float near = 0.0f;
#pragma unroll
      for (int i = 0; i < N; i++) {
        const float x = factor[i];
        const bool is_far = (best_score - x) / fmaxf(fabsf(x), best_score) > margin;
        if (key[i] != 0 && !is_far) near += expf(x - best_score);
      }
      part = 1.0f / warp_sum(near);
    }
    if (most == 0 || lane != holder) continue;
    bool is_taken = false;
#pragma unroll
    for (int i = 0; i < N; i++) {
      if (is_taken || key[i] != most) continue;
      is_taken = true, key[i] = 0, plain[i] = part, chosen |= 1u << i;
    }
  }
  if (scoring == sparse_mixer) {
#pragma unroll
    for (int i = 0; i < N; i++) factor[i] = plain[i];
  }

  if (scoring == softmax_of_chosen) {
    top = -INFINITY;
#pragma unroll
    for (int i = 0; i < N; i++)
      if (chosen >> i & 1) top = fmaxf(top, factor[i]);
    top = warp_max(top);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) {
      if (!(chosen >> i & 1)) continue;
      factor[i] = expf(factor[i] - top);
      sum += factor[i];
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int i = 0; i < N; i++) factor[i] /= sum;
  }
  float times = scale;
  if (normalize) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++)
      if (chosen >> i & 1) sum += factor[i];
    times = scale / warp_sum(sum);
  }
  if (!is_number) times = __int_as_float(0x7fffffff);

  // The places of a lane's experts come behind those of the lanes before it.
  int at = __popc(chosen);
  const int own = at;
  for (int offset = 1; offset < 32; offset <<= 1) {
    int before = __shfl_up_sync(all_lanes, at, offset);
    if (lane >= offset) at += before;
  }
  at -= own;
#pragma unroll
  for (int i = 0; i < N; i++) {
    if (!(chosen >> i & 1)) continue;
    ids[at] = float(first + i);
    weights[at] = factor[i] * times;
    at++;
  }
}

#define MAKE(N)                                                                                                  \
  extern "C" __global__ void __launch_bounds__(32 * warps) route_##N(                                            \
      const float* scores, int score_stride, const float* bias, const uint32_t* active, float* out,              \
      int out_stride, int n_rows, int n_experts, int n_chosen, int scoring, int n_groups, int n_open,            \
      int n_best, int normalize, float scale, float margin) {                                                    \
    route<N>(scores, score_stride, bias, active, out, out_stride, n_rows, n_experts, n_chosen, scoring,          \
             n_groups, n_open, n_best, normalize, scale, margin);                                                \
  }

MAKE(1)
MAKE(2)
MAKE(4)
MAKE(8)
MAKE(16)
MAKE(32)
#undef MAKE

// Elements that lie one after the other.
template <int N>
struct Pack {
  float at[N];

  __device__ __forceinline__ void load(const float* from) {
    if constexpr (N == 4) {
      float4 all = *reinterpret_cast<const float4*>(from);
      at[0] = all.x, at[1] = all.y, at[2] = all.z, at[3] = all.w;
    } else {
      at[0] = *from;
    }
  }

  __device__ __forceinline__ void store(float* to) const {
    if constexpr (N == 4) {
      *reinterpret_cast<float4*>(to) = {at[0], at[1], at[2], at[3]};
    } else {
      *to = at[0];
    }
  }
};

constexpr int threads = 128;

// The sum of the results of a row's experts by their factors, in the order of the routes; a thread has `N` elements.
// x: [n_rows, n_chosen * width], routes: [n_rows, 2 * n_chosen], out: [n_rows, width].
template <int N>
__device__ __forceinline__ void combine(
    const float* x, int x_stride, const float* routes, int route_stride, float* out, int out_stride, int n_chosen,
    int width) {
  const int col = (blockIdx.y * threads + threadIdx.x) * N;
  if (col >= width) return;
  const size_t row = blockIdx.x;
  const float* ids = routes + row * route_stride;
  const float* results = x + row * x_stride + col;
  Pack<N> sum = {};
  for (int first = 0; first < n_chosen; first += 4, ids += 4, results += 4 * size_t(width)) {
    // Four experts at a time, so that their loads are under way together.
    Pack<N> value[4];
    float factor[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      value[i] = {}, factor[i] = 0.0f;
      if (i >= n_chosen - first || ids[i] < 0.0f) continue;
      factor[i] = ids[n_chosen + i];
      value[i].load(results + i * size_t(width));
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
      for (int j = 0; j < N; j++) sum.at[j] = fmaf(factor[i], value[i].at[j], sum.at[j]);
    }
  }
  sum.store(out + row * out_stride + col);
}

#define MAKE(N)                                                                                                  \
  extern "C" __global__ void __launch_bounds__(threads) combine_##N(                                             \
      const float* x, int x_stride, const float* routes, int route_stride, float* out, int out_stride,           \
      int n_chosen, int width) {                                                                                 \
    combine<N>(x, x_stride, routes, route_stride, out, out_stride, n_chosen, width);                             \
  }

MAKE(1)
MAKE(4)
#undef MAKE

// Adds to the results of a row's experts, which lie side by side, the biases of these experts. What experts with the
// number -1 have as results stays as it is, and `out` may be `x`.
// x: [n_rows, n_chosen * width], routes: [n_rows, 2 * n_chosen], biases: [n_experts, width].
extern "C" __global__ void __launch_bounds__(threads) expert_bias(
    const float* x, int x_stride, const float* routes, int route_stride, const float* biases, float* out,
    int out_stride, int n_cols, int width, int n_experts) {
  const int col = blockIdx.y * threads + threadIdx.x;
  if (col >= n_cols) return;
  const size_t row = blockIdx.x;
  const int slot = col / width;
  const float id = routes[row * route_stride + slot];
  if (!(id >= 0.0f)) return;
  const int expert = int(id);
  if (expert >= n_experts) __trap();
  out[row * out_stride + col] = x[row * x_stride + col] + biases[size_t(expert) * width + (col - slot * width)];
}

// Column c of a row of out is column order[c] of that row of x, which has n_from. order: [n_cols] of whole numbers.
extern "C" __global__ void __launch_bounds__(threads) reorder(
    const float* x, int x_stride, int n_from, const float* order, float* out, int out_stride, int n_cols) {
  const int col = blockIdx.y * threads + threadIdx.x;
  if (col >= n_cols) return;
  const float from = order[col];
  if (!(from >= 0.0f && from < float(n_from))) __trap();
  const size_t row = blockIdx.x;
  out[row * out_stride + col] = x[row * x_stride + int(from)];
}
