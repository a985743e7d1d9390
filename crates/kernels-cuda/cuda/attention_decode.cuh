// Attention of decode steps over keys and values in pages (Dao et al., 2023, "Flash-Decoding").
//
// A context is cut into splits of 256 positions from its start, and eight splits are a span. Splits are added in order
// to their span, and spans in order to the result, whichever block does it: blocks have a split each, and the last one of
// a span adds its splits, or they have a span each. The last block of a row adds its spans. So a result's bits depend on
// its own context alone, and the number of blocks on the room for what they hand over.
//
// A block has up to eight query heads that share a head of keys and values. Where the step has a row of each sequence, blocks
// turn their queries themselves, and that with the last position of a row stores its key and value.
#pragma once
#include "heads.cuh"
#include "quantized.cuh"
#include "tensor.cuh"

constexpr int split_len = 256;
constexpr int span_splits = 8;
constexpr int max_heads = 8;
constexpr int warps = 4;
constexpr int threads = 32 * warps;
constexpr float log2_e = 1.44269504f;

// What a launch computes.
struct Job {
  const float* q;  // what `heads` turns, if it has any, or queries as they are multiplied
  int q_stride;
  int n_heads;
  float scale, softcap;
  const float* sinks;
  float* out;
  int out_stride;
  float *splits, *spans;  // [n_rows, blocks of a row, n_splits or n_spans, heads, Dim + 2]
  uint32_t* counters;     // [n_rows, blocks of a row, n_spans + 1], zero between launches
  int first_row, n_parts, n_splits, n_spans;
  int by_span;            // a block has a span, not a split
  BlockRows to;           // the results for the product behind, or none; heads are whole blocks of 32 then
  NewHeads heads;         // of these rows, if they are not stored yet; each is of its own sequence then
};

// The rows and heads of a block.
struct Block {
  int row, kv_head, first_head, heads;
  Seen seen;
  const float* q;  // of the first head
  int q_pitch;     // from one to the next
};

// Heads of a split, a span or a row, and what they are made of. `pitch` keeps heads apart in the banks.
template <int Dim>
struct Shared {
  static constexpr int pitch = Dim + 2;
  __align__(16) float fresh[2][Dim];  // a key and a value
  float values[max_heads][pitch];     // in front of them, queries that were turned
  float peak[max_heads], sum[max_heads];  // of `values`
  float all_peak[max_heads], all_sum[max_heads], keep[max_heads], take[max_heads];
  bool is_last;
};

// Scores become logarithms to base 2; `natural` is the factor of the dot product in front of it.
__device__ __forceinline__ float capped(float score, float softcap) {
  return softcap > 0.0f ? softcap * log2_e * tanhf(score / softcap) : score;
}
__device__ __forceinline__ float natural(const Job& job) { return job.softcap > 0.0f ? job.scale : job.scale * log2_e; }

// The factor of what has one peak beside another that is not smaller, also where both are infinite.
__device__ __forceinline__ float factor(float peak, float largest) {
  return peak == largest ? 1.0f : exp2_approx(peak - largest);
}

// A sum of heads in the registers of a block: element `threadIdx.x + i * threads` of [heads, Dim].
template <int Dim>
struct Total {
  static constexpr int n = max_heads * Dim / threads;
  float all[n];

  __device__ __forceinline__ void clear(Shared<Dim>& shared) {
#pragma unroll
    for (int i = 0; i < n; i++) all[i] = 0.0f;
    if (threadIdx.x < max_heads) shared.all_peak[threadIdx.x] = -INFINITY, shared.all_sum[threadIdx.x] = 0.0f;
  }

  // Adds heads. `peak_of(head)` and `sum_of(head)` are theirs, `value(head, column)` is an element of them.
  template <class Peak, class Sum, class Value>
  __device__ __forceinline__ void add(
      Shared<Dim>& shared, int heads, const Peak& peak_of, const Sum& sum_of, const Value& value) {
    __syncthreads();
    if (threadIdx.x < heads) {
      const int h = threadIdx.x;
      const float peak = peak_of(h), before = shared.all_peak[h], largest = fmaxf(before, peak);
      const float keep = factor(before, largest), take = factor(peak, largest);
      shared.keep[h] = keep, shared.take[h] = take, shared.all_peak[h] = largest;
      shared.all_sum[h] = fmaf(sum_of(h), take, shared.all_sum[h] * keep);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < n; i++) {
      const int at = threadIdx.x + i * threads, h = at / Dim;
      if (h < heads) all[i] = fmaf(value(h, at % Dim), shared.take[h], all[i] * shared.keep[h]);
    }
  }

  // Hands a sum over: values, peaks, sums.
  __device__ __forceinline__ void store(const Shared<Dim>& shared, int heads, float* to) const {
#pragma unroll
    for (int i = 0; i < n; i++) {
      const int at = threadIdx.x + i * threads;
      if (at / Dim < heads) __stcg(to + at, all[i]);
    }
    if (threadIdx.x < heads) {
      __stcg(to + heads * Dim + threadIdx.x, shared.all_peak[threadIdx.x]);
      __stcg(to + heads * Dim + heads + threadIdx.x, shared.all_sum[threadIdx.x]);
    }
  }

  // Adds what was handed over.
  __device__ __forceinline__ void add_stored(Shared<Dim>& shared, int heads, const float* from) {
    const float* of_heads = from + heads * Dim;
    add(
        shared, heads, [=](int h) { return __ldcg(of_heads + h); }, [=](int h) { return __ldcg(of_heads + heads + h); },
        [=](int h, int column) { return __ldcg(from + h * Dim + column); });
  }
};

// Whether this is the last of `n` blocks that come here with the same counter, which is zero afterwards.
__device__ __forceinline__ bool is_last_of(uint32_t* counter, int n, bool& shared) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    shared = atomicAdd(counter, 1u) == uint32_t(n - 1);
    if (shared) *counter = 0;
    __threadfence();
  }
  __syncthreads();
  return shared;
}

// Stores the results of a block: `total` times the factor of each head in `shared.keep`.
template <int Dim>
__device__ __forceinline__ void store(
    const Job& job, const Block& block, int head_dim, const Total<Dim>& total, Shared<Dim>& shared) {
  const int first = block.first_head * head_dim, n = block.heads * head_dim;
  float* out = job.out + size_t(block.row) * job.out_stride + first;
#pragma unroll
  for (int i = 0; i < Total<Dim>::n; i++) {
    const int at = threadIdx.x + i * threads, h = at / Dim, column = at % Dim;
    if (h >= block.heads || column >= head_dim) continue;
    const float x = total.all[i] * shared.keep[h];
    out[h * head_dim + column] = x;
    if (job.to.values) shared.values[h][column] = x;
  }
  if (!job.to.values) return;
  __syncthreads();
  // The last heads have the zeros behind the row, too.
  const int n_cols = job.n_heads * head_dim, end = first + n == n_cols ? job.to.reach(n_cols) - first : n;
  for (int begin = 0; begin < end; begin += 4 * threads) {
    const int at = begin + 4 * threadIdx.x;
    float4 v = {};
    if (at < n) {
      const float* from = &shared.values[at / head_dim][at % head_dim];
      v = {from[0], from[1], from[2], from[3]};
    }
    job.to.store(block.row, v, first + at, at < end);
  }
}

// Turns the queries of a block in `shared.values`, and stores the key and the value of the row if it is to. Tells whether there
// were any.
template <int Dim, class Attend>
__device__ __forceinline__ bool turn(
    const Pages& pages, const Job& job, Block& block, bool stores, Shared<Dim>& shared, const Attend& attend) {
  const NewHeads& heads = job.heads;
  const int head_dim = pages.head_dim, row = block.row;
  const uint32_t slot = stores ? heads.slots[row] : none;
  const int n_new = slot == none ? 0 : 2;
  const float* q = job.q + size_t(row) * job.q_stride + block.first_head * head_dim;
  __syncthreads();
  for (int i = threadIdx.x / 32; i < n_new + block.heads; i += warps) {
    if (i < n_new) {
      const bool is_value = i == 1;
      float* x = shared.fresh[i];
      bring_head(x, heads.at(is_value, row, block.kv_head, head_dim), head_dim, Dim);
      if (!is_value) heads.turn(x, row, heads.k_norm, head_dim);
      attend.store(x, is_value, block.kv_head, slot);
    } else {
      float* x = shared.values[i - n_new];
      bring_head(x, q + (i - n_new) * head_dim, head_dim, head_dim);
      heads.turn(x, row, heads.q_norm, head_dim);
    }
  }
  __syncthreads();
  block.q = shared.values[0], block.q_pitch = Shared<Dim>::pitch;
  return n_new > 0;
}

// `attend(block, start, end, is_first, prepare, shared)` leaves the heads of the positions `start` to `end` of a split in
// `shared`. It calls `prepare` in front of reading queries, whose result is whether the key and the value of the row are stored
// now. `attend.store(x, is_value, kv_head, slot)` stores one of them.
template <int Dim, class Attend>
__device__ __forceinline__ void decode(
    const Pages& pages, const Tables& tables, const Job& job, Shared<Dim>& shared, const Attend& attend) {
  const int group = job.n_heads / pages.n_kv_heads, head_dim = pages.head_dim;
  const int most = (group + job.n_parts - 1) / job.n_parts;
  Block block;
  block.row = job.first_row + blockIdx.y, block.kv_head = blockIdx.x / job.n_parts;
  const int in_group = blockIdx.x % job.n_parts * most;
  block.first_head = block.kv_head * group + in_group, block.heads = min(most, group - in_group);
  block.seen = tables.seen(block.row);
  block.q = job.q + size_t(block.row) * job.q_stride + block.first_head * head_dim, block.q_pitch = head_dim;
  const int heads = block.heads;
  if (heads <= 0) return;
  Total<Dim> total;
  if (block.seen.first >= block.seen.end) {
    if (blockIdx.z != 0) return;
    total.clear(shared);
    if (threadIdx.x < heads) shared.keep[threadIdx.x] = 0.0f;
    __syncthreads();
    return store(job, block, head_dim, total, shared);
  }

  const int first_split = block.seen.first / split_len, last_split = (block.seen.end - 1) / split_len;
  const int first_span = first_split / span_splits, last_span = last_split / span_splits;
  if (last_split - first_split >= job.n_splits || last_span - first_span >= job.n_spans) __trap();
  // Places of what blocks hand over.
  auto place = [&] { return size_t(blockIdx.y) * gridDim.x + blockIdx.x; };
  auto part = [&](float* all, int n, int i) { return all + (place() * n + i) * (most * (Dim + 2)); };
  auto counter = [&](int i) { return job.counters + place() * (job.n_spans + 1) + i; };

  // A split, or the splits of a span.
  const int own = first_split + int(blockIdx.z);
  const int span = job.by_span ? first_span + int(blockIdx.z) : own / span_splits;
  if (job.by_span ? span > last_span : own > last_split) return;
  const int first = max(span * span_splits, first_split), last = min(span * span_splits + span_splits - 1, last_split);
  total.clear(shared);
  const int begin = job.by_span ? first : own, end = job.by_span ? last : own;
#pragma unroll 1
  for (int split = begin; split <= end; split++) {
    const int start = max(split * split_len, block.seen.first);
    const bool is_first = split == begin;
    const auto prepare = [&] {
      return job.heads.k && turn(pages, job, block, is_first && end == last_split, shared, attend);
    };
    attend(block, start, min((split + 1) * split_len, block.seen.end), is_first, prepare, shared);
    total.add(
        shared, heads, [&](int h) { return shared.peak[h]; }, [&](int h) { return shared.sum[h]; },
        [&](int h, int column) { return shared.values[h][column]; });
  }
  if (!job.by_span && first < last) {
    total.store(shared, heads, part(job.splits, job.n_splits, own - first_split));
    if (!is_last_of(counter(span - first_span), last - first + 1, shared.is_last)) return;
    total.clear(shared);
    for (int split = first; split <= last; split++)
      total.add_stored(shared, heads, part(job.splits, job.n_splits, split - first_split));
  }

  // The spans of a row.
  if (first_span < last_span) {
    __syncthreads();
    total.store(shared, heads, part(job.spans, job.n_spans, span - first_span));
    if (!is_last_of(counter(job.n_spans), last_span - first_span + 1, shared.is_last)) return;
    total.clear(shared);
    for (int s = first_span; s <= last_span; s++)
      total.add_stored(shared, heads, part(job.spans, job.n_spans, s - first_span));
  }

  __syncthreads();
  if (threadIdx.x < heads) {
    const int h = threadIdx.x;
    float sum = shared.all_sum[h], keep = 1.0f;
    if (job.sinks) {
      const float sink = job.sinks[block.first_head + h] * log2_e, largest = fmaxf(shared.all_peak[h], sink);
      keep = factor(shared.all_peak[h], largest);
      sum = fmaf(sum, keep, exp2_approx(sink - largest + weight_bias));
    }
    shared.keep[h] = keep / sum;
  }
  __syncthreads();
  store(job, block, head_dim, total, shared);
}

// Queries as fragments: for 32 columns and a lane, columns 8 c to 8 c + 7 of head g in two steps of the product, each the
// higher part of two columns, the lower part, and both of the next two.
template <int Dim>
struct Queries {
  uint4 part[Dim / 32][32][2];
  float restore[max_heads];
};

template <class T, int Dim>
__device__ __forceinline__ void load_queries(
    const Job& job, const Block& block, int head_dim, Queries<Dim>& queries) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int h = warp; h < max_heads; h += warps) {
    float largest = 0.0f;
    for (int i = lane; i < head_dim && h < block.heads; i += 32)
      largest = fmaxf(largest, fabsf(block.q[h * block.q_pitch + i] * natural(job)));
    for (int offset = 16; offset; offset >>= 1)
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
    if (lane == 0) queries.restore[h] = power_of_two(-exponent_shift<T>(largest));
  }
  __syncthreads();
  for (int i = threadIdx.x; i < Dim; i += threads) {
    const int h = i % 32 / 4, column = i / 32 * 32 + i % 4 * 8;
    const float factor = natural(job) / queries.restore[h];
    uint32_t high[4], low[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float2 x = {0.0f, 0.0f};
      const float* from = block.q + h * block.q_pitch + column + 2 * j;
      if (h < block.heads && column + 2 * j < head_dim) x.x = from[0];
      if (h < block.heads && column + 2 * j + 1 < head_dim) x.y = from[1];
      split_pair<T>(x, factor, high[j], low[j]);
    }
    queries.part[i / 32][i % 32][0] = {high[0], low[0], high[1], low[1]};
    queries.part[i / 32][i % 32][1] = {high[2], low[2], high[3], low[3]};
  }
  __syncthreads();
}

// A split on tensor cores. A warp has every fourth tile of 16 positions. Keys and values go from memory to registers in
// units of a tile and 128 columns (or all 64), one ahead of the products: a lane reads 16 bytes at a time, and the order of
// columns in a product is that in which lanes have them.
//
// Scores are queries times keys, with the higher parts of eight heads in the rows 0 to 7 and the lower parts in 8 to 15.
// Values are the left factor of the second product, so its columns are heads; weights are split in two parts as well.
template <class S, int Dim>
struct OnTensorCores {
  using T = typename Half<S>::type;
  static constexpr int piece = Dim < 128 ? Dim : 128;
  static constexpr int pieces = Dim / piece;
  static constexpr int loads = piece / 16;  // of a lane, for a unit
  static constexpr int tiles = split_len / 16 / warps;
  S *k_pages, *v_pages;
  const Pages& pages;
  const Tables& tables;
  const Job& job;
  Queries<Dim>& queries;

  __device__ __forceinline__ void store(const float* x, bool is_value, int kv_head, uint32_t slot) const {
    store_head(x, is_value ? v_pages : k_pages, pages, kv_head, slot);
  }

  template <class Prepare>
  __device__ __forceinline__ void operator()(
      const Block& block, int start, int end, bool is_first, const Prepare& prepare, Shared<Dim>& shared) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    const int row_len = pages.row_len<S>(), pitch = pages.row_pitch<S>(), base = start / split_len * split_len + 16 * warp;
    uint32_t tile_page[tiles];
#pragma unroll
    for (int t = 0; t < tiles; t++) {
      const int position = base + 16 * warps * t;
      const bool exists = position < end && position + 16 > start;
      tile_page[t] = exists ? tables.page(block.seen, position, pages.page_shift) : none;
    }

    Eight<S> unit[2][loads];
    auto load = [&](int u) {
      const bool is_key = u < tiles * pieces;
      const int t = u / pieces % tiles, p = u % pieces, first = base + 16 * warps * t;
      const bool exists = tile_page[t] != none;
      const S *all = is_key ? k_pages : v_pages, *place = all;
      const __half* scales = nullptr;
      if (exists) {
        const uint32_t in_page = first & ((1 << pages.page_shift) - 1);
        place += pages.at<S>(tile_page[t], block.kv_head, in_page);
        scales = pages.scales(all, tile_page[t], block.kv_head, in_page);
      }
#pragma unroll
      for (int i = 0; i < loads; i++) {
        // Keys: rows g and g + 8, 32 columns at a time. Values: four rows, 64 columns at a time.
        const int in_tile = is_key ? g + i % 2 * 8 : 2 * c + i % 2 + i / 2 % 2 * 8;
        const int column = p * piece + (is_key ? i / 2 * 32 + 8 * c : i / 4 * 64 + 8 * g);
        const bool is_seen = first + in_tile >= start && first + in_tile < end;
        Eight<S>& x = unit[u % 2][i];
        x.clear();
        if (exists && column < row_len && is_seen)
          x.load(place + in_tile * pitch, scales + in_tile * (row_len / 32), column);
      }
    };

    // Scores of head g at positions 2 c and 2 c + 1 of both halves of each tile.
    float score[tiles][2][2];
    load(0);
    // Overlaps with the load of the first keys, which are loaded again where the last one of them has just been stored.
    if (is_first) {
      if (prepare() && end - base <= 16) load(0);
      load_queries<T, Dim>(job, block, pages.head_dim, queries);
    }
#pragma unroll
    for (int t = 0; t < tiles; t++) {
      float product[2][4] = {};
#pragma unroll
      for (int p = 0; p < pieces; p++) {
        const int u = t * pieces + p;
        load(u + 1);
#pragma unroll
        for (int i = 0; i < piece / 32; i++) {
          const uint4 first = queries.part[p * (piece / 32) + i][lane][0], next = queries.part[p * (piece / 32) + i][lane][1];
          const uint32_t a[4] = {first.x, first.y, first.z, first.w}, b[4] = {next.x, next.y, next.z, next.w};
#pragma unroll
          for (int n = 0; n < 2; n++) {
            const uint4 key = unit[u % 2][2 * i + n].words();
            mma<T>(product[n], a, key.x, key.y);
            mma<T>(product[n], b, key.z, key.w);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < 2; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const int position = base + 16 * warps * t + 8 * n + 2 * c + i;
          const float s = capped((product[n][i] + product[n][2 + i]) * queries.restore[g], job.softcap);
          score[t][n][i] = position >= start && position < end ? s : -INFINITY;
        }
      }
    }

    float peak = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int t = 0; t < tiles; t++) {
#pragma unroll
      for (int n = 0; n < 2; n++) peak = fmaxf(peak, fmaxf(score[t][n][0], score[t][n][1]));
    }
    peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 1));
    peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 2));
    const float zero = peak == -INFINITY ? 0.0f : peak;

    // Values, with heads 2 c and 2 c + 1 in the columns of the result, and columns 8 g + 2 k and 8 g + 2 k + 1 of each 64 in
    // the rows g and g + 8 of tile k.
    float result[Dim / 16][4] = {};
#pragma unroll
    for (int t = 0; t < tiles; t++) {
      uint32_t high[2], low[2];
#pragma unroll
      for (int n = 0; n < 2; n++) {
        const float2 weight = {exp2_approx(score[t][n][0] - zero + weight_bias),
                               exp2_approx(score[t][n][1] - zero + weight_bias)};
        sum += weight.x + weight.y;
        split_pair<T>(weight, 1.0f, high[n], low[n]);
      }
#pragma unroll
      for (int p = 0; p < pieces; p++) {
        const int u = (tiles + t) * pieces + p;
        if (u + 1 < 2 * tiles * pieces) load(u + 1);
#pragma unroll
        for (int i = 0; i < piece / 64; i++) {
          const uint4 x[4] = {unit[u % 2][4 * i].words(), unit[u % 2][4 * i + 1].words(),
                              unit[u % 2][4 * i + 2].words(), unit[u % 2][4 * i + 3].words()};
          const uint32_t word[4][4] = {{x[0].x, x[0].y, x[0].z, x[0].w},
                                       {x[1].x, x[1].y, x[1].z, x[1].w},
                                       {x[2].x, x[2].y, x[2].z, x[2].w},
                                       {x[3].x, x[3].y, x[3].z, x[3].w}};
#pragma unroll
          for (int k = 0; k < 4; k++) {
            const uint32_t a[4] = {
                __byte_perm(word[0][k], word[1][k], 0x5410), __byte_perm(word[0][k], word[1][k], 0x7632),
                __byte_perm(word[2][k], word[3][k], 0x5410), __byte_perm(word[2][k], word[3][k], 0x7632)};
            float(&to)[4] = result[p * (piece / 16) + 4 * i + k];
            mma<T>(to, a, low[0], low[1]);
            mma<T>(to, a, high[0], high[1]);
          }
        }
      }
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);

    // The warps of a split, in order.
    __shared__ float peaks[warps][max_heads], sums[warps][max_heads];
    __syncthreads();
    if (c == 0) peaks[warp][g] = peak, sums[warp][g] = sum;
    __syncthreads();
    float share[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int h = 2 * c + i;
      float largest = peaks[0][h];
#pragma unroll
      for (int w = 1; w < warps; w++) largest = fmaxf(largest, peaks[w][h]);
      share[i] = factor(peaks[warp][h], largest);
      if (warp == 0 && g == 0) {
        float all = sums[0][h] * share[i];
#pragma unroll
        for (int w = 1; w < warps; w++) all = fmaf(sums[w][h], factor(peaks[w][h], largest), all);
        shared.peak[h] = largest, shared.sum[h] = all;
      }
    }
    for (int w = 0; w < warps; w++) {
      if (w == warp) {
#pragma unroll
        for (int d = 0; d < Dim / 16; d++) {
          const int column = d / 4 * 64 + 8 * g + d % 4 * 2;
#pragma unroll
          for (int i = 0; i < 2; i++) {
            float2* to = reinterpret_cast<float2*>(&shared.values[2 * c + i][column]);
            const float2 before = w == 0 ? float2{0.0f, 0.0f} : *to;
            *to = {fmaf(result[d][i], share[i], before.x), fmaf(result[d][2 + i], share[i], before.y)};
          }
        }
      }
      __syncthreads();
    }
  }
};

#define PARAMETERS(TYPE)                                                                                             \
  const float *q, int q_stride, TYPE *k_pages, TYPE *v_pages, int n_pages, int n_kv_heads,                           \
      int page_shift, int head_dim, const uint32_t *words, const uint32_t *positions, const uint32_t *seq_of_row,    \
      const uint32_t *bases, const uint32_t *reaches, int n_words, int n_seqs, int window, int n_heads, float scale, \
      float softcap, const float *sinks, float *out, int out_stride, float *splits, float *spans,                    \
      uint32_t *counters, int first_row, int n_parts, int n_splits, int n_spans, int by_span, uint32_t *values,      \
      uint2 *heads, int stride, int in_bf16, const float *k, int k_stride, const float *v, int v_stride,             \
      const float *table, int table_stride, int n_pairs, int neighbours, const float *q_norm, float q_eps,           \
      const float *k_norm, float k_eps, const uint32_t *slots
#define STRUCTS                                                                                                       \
  const Pages pages = {n_pages, n_kv_heads, page_shift, head_dim};                                                    \
  const Tables tables = {words, positions, seq_of_row, bases, reaches, n_words, n_seqs, window};                      \
  const Job job = {q,   q_stride,   n_heads, scale, softcap,  sinks,     out,     out_stride,                         \
                   splits, spans, counters, first_row, n_parts, n_splits, n_spans, by_span,                           \
                   {values, heads, stride, in_bf16},                                                                  \
                   {k, k_stride, v, v_stride, table, table_stride, n_pairs, neighbours != 0, {q_norm, q_eps},         \
                    {k_norm, k_eps}, slots}};

#define MAKE(TYPE, NAME, DIM, BLOCKS)                                                                       \
  extern "C" __global__ void __launch_bounds__(threads, BLOCKS) attention_##NAME##_##DIM(PARAMETERS(TYPE)) { \
    __shared__ __align__(16) Queries<DIM> queries;                                                          \
    __shared__ __align__(16) Shared<DIM> shared;                                                            \
    STRUCTS                                                                                                 \
    const OnTensorCores<TYPE, DIM> attend = {k_pages, v_pages, pages, tables, job, queries};                \
    decode<DIM>(pages, tables, job, shared, attend);                                                        \
  }
#define MAKE_ALL(TYPE, NAME)   \
  MAKE(TYPE, NAME, 64, 4)      \
  MAKE(TYPE, NAME, 128, 3)     \
  MAKE(TYPE, NAME, 256, 2)
