// Attention of prompts on tensor cores, over keys and values in pages (Dao, 2023, "FlashAttention-2").
//
// A tile of consecutive rows of a sequence, times the query heads that share a head of keys and values, is cut into
// blocks of 128 queries. A block goes over tiles of positions, which begin at multiples of their length, with a running
// maximum and sum for each query; a query that sees nothing of a tile is left as it was. So a row's bits depend on
// neither its block nor the other rows.
//
// Queries are split in two parts of 16 bits, whose products with the keys are added up, since a score's error has to be
// small beside one however large the score is. Weights are rounded once.
#pragma once
#include "pages.cuh"
#include "prefill_rows.cuh"
#include "tensor.cuh"

constexpr int warps = 8;
constexpr int threads = 32 * warps;
constexpr int block_queries = 16 * warps;
constexpr float log2_e = 1.44269504f;

// What a launch computes.
struct Job {
  const float* q;
  int q_stride;
  int n_heads;
  float scale, softcap;
  const float* sinks;
  float* out;  // null where the results are not wanted in F32
  int out_stride;
  const uint32_t* tiles;  // [n_tiles, 2]: first row and number of rows
  int n_tiles, n_parts;   // blocks of a tile and a head of keys
  PrefillRows to;         // the results for the product behind, or none; a row has whole spans of 128 columns then
  int to_first;           // the row of the step that is the first one of `to`
};

// Two elements of a query, from `column` on; zeros for one that does not exist.
__device__ __forceinline__ float2 query_pair(const float* query, int column, int head_dim, bool paired) {
  float2 x = {0.0f, 0.0f};
  if (!query) return x;
  if (paired) {
    if (column < head_dim) x = *reinterpret_cast<const float2*>(query + column);
  } else {
    if (column < head_dim) x.x = query[column];
    if (column + 1 < head_dim) x.y = query[column + 1];
  }
  return x;
}

// Dim: columns of a head, filled up. Len: positions of a tile.
template <class S, int Dim, int Len>
__device__ __forceinline__ void prefill(
    const S* k_pages, const S* v_pages, const Pages& pages, const Tables& tables, const Job& job) {
  using T = typename Half<S>::type;
  constexpr int chunks = Dim / 8;       // of 16 bytes, in a row
  constexpr int key_tiles = Len / 8;    // of a score's columns
  constexpr int value_tiles = Dim / 8;  // of a result's columns
  constexpr int steps = Dim / 16;       // of the products with keys
  constexpr bool in_registers = Dim <= 128;
  constexpr int copies = Len * chunks / threads;
  constexpr int pitch = chunks + 1;     // rows lie apart in the banks
  static_assert(Len * chunks % threads == 0, "every thread copies as much");
  __shared__ __align__(128) uint4 key_tile[Len * pitch];
  __shared__ __align__(128) uint4 value_tile[Len * pitch];
  __shared__ uint32_t tile_pages[2][Len / 16];

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int group = job.n_heads / pages.n_kv_heads, head_dim = pages.head_dim;
  const int kv_head = blockIdx.x / job.n_parts, part = blockIdx.x % job.n_parts;
  // The last tiles of a prompt see most: they begin first.
  const int tile = job.n_tiles - 1 - int(blockIdx.y);
  const uint32_t first_row = job.tiles[2 * tile], n_rows = job.tiles[2 * tile + 1];
  const int n_queries = int(n_rows) * group, query_base = part * block_queries;
  if (query_base >= n_queries) return;
  if (job.to.values && first_row < uint32_t(job.to_first)) __trap();

  // Rows of the block, and of the warp, in order: what they see rises.
  const int last_query = min(query_base + block_queries, n_queries) - 1;
  const Seen block_first = tables.seen(first_row + query_base / group);
  const Seen block_last = tables.seen(first_row + last_query / group);
  const int warp_query = min(query_base + warp * 16, last_query);
  const Seen warp_first = tables.seen(first_row + warp_query / group);
  const Seen warp_last = tables.seen(first_row + min(warp_query + 15, last_query) / group);
  const bool warp_exists = query_base + warp * 16 <= last_query;

  const bool paired = head_dim % 2 == 0 && job.q_stride % 2 == 0 && job.out_stride % 2 == 0 &&
                      reinterpret_cast<uintptr_t>(job.q) % 8 == 0 && reinterpret_cast<uintptr_t>(job.out) % 8 == 0;
  // A lane has fragments of two queries, rows `g` and `g + 8` of its warp's sixteen, which see these positions.
  const int own_query = query_base + warp * 16 + g;
  int first[2], last[2];
  const float* query[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int index = min(own_query + 8 * r, last_query), row = first_row + index / group;
    const Seen seen = tables.seen(row);
    first[r] = seen.first, last[r] = seen.end;
    query[r] = job.q + size_t(row) * job.q_stride + (kv_head * group + index % group) * head_dim;
    if (own_query + 8 * r > last_query) query[r] = nullptr;
  }

  // The factor of the queries, with the exponent that brings them to where halves are precise.
  const float natural = job.softcap > 0.0f ? job.scale : job.scale * log2_e;
  float factor[2], restore[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float largest = 0.0f;
    for (int column = 2 * c; column < Dim; column += 8) {
      const float2 x = query_pair(query[r], column, head_dim, paired);
      largest = fmaxf(largest, fmaxf(fabsf(x.x * natural), fabsf(x.y * natural)));
    }
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    const int shift = exponent_shift<T>(largest);
    factor[r] = natural * power_of_two(shift), restore[r] = power_of_two(-shift);
  }
  auto load_query = [&](int step, uint32_t(&high)[4], uint32_t(&low)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float2 x = query_pair(query[i % 2], 16 * step + 8 * (i / 2) + 2 * c, head_dim, paired);
      split_pair<T>(x, factor[i % 2], high[i], low[i]);
    }
  };
  uint32_t q_high[in_registers ? steps : 1][4], q_low[in_registers ? steps : 1][4];
  if (in_registers) {
#pragma unroll
    for (int s = 0; s < steps; s++) load_query(s, q_high[in_registers ? s : 0], q_low[in_registers ? s : 0]);
  }

  // Where the lane's rows of matrices begin.
  const uint32_t key_lane = shared_address(key_tile + (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2);
  const uint32_t value_lane = shared_address(value_tile + lane % 16 * pitch + lane / 16);

  float result[value_tiles][4] = {};
  float peak[2] = {-INFINITY, -INFINITY}, total[2] = {};

  const int start = block_first.first / Len, end = block_first.first < block_last.end ? (block_last.end + Len - 1) / Len : 0;
  auto find_pages = [&](int t) {
    const int position = t * Len + 16 * int(threadIdx.x);
    if (threadIdx.x < Len / 16 && position < block_last.end && position + 16 > block_first.first)
      tile_pages[t % 2][threadIdx.x] = tables.page(block_last, position, pages.page_shift);
  };
  // Positions that no row of the block sees become zeros.
  auto copy_tile = [&](int t, const S* from, uint4* to) {
#pragma unroll
    for (int i = 0; i < copies; i++) {
      const int at = i * threads + threadIdx.x, in_tile = at / chunks, chunk = at % chunks;
      const int position = t * Len + in_tile;
      const bool exists = position >= block_first.first && position < block_last.end && 8 * chunk < pages.row_len<S>();
      if constexpr (sizeof(S) == 1) {
        Eight<S> eight;
        eight.clear();
        if (exists) {
          const uint32_t page = tile_pages[t % 2][in_tile / 16], in_page = position & ((1 << pages.page_shift) - 1);
          eight.load(from + pages.at<S>(page, kv_head, in_page), pages.scales(from, page, kv_head, in_page), 8 * chunk);
        }
        to[in_tile * pitch + chunk] = eight.words();
        continue;
      }
      const S* place = from;
      if (exists) {
        const uint32_t page = tile_pages[t % 2][in_tile / 16];
        place += pages.at<S>(page, kv_head, position & ((1 << pages.page_shift) - 1)) + 8 * chunk;
      }
      copy_async(shared_address(to + in_tile * pitch + chunk), place, exists);
    }
    commit_copies();
  };

  if (start < end) {
    find_pages(start);
    __syncthreads();
    copy_tile(start, k_pages, key_tile);
  }
  for (int t = start; t < end; t++) {
    wait_copies();
    __syncthreads();
    copy_tile(t, v_pages, value_tile);
    if (t + 1 < end) find_pages(t + 1);

    const int base = t * Len;
    const bool sees = warp_exists && base < warp_last.end && base + Len > warp_first.first;
    float score[key_tiles][4] = {};
    if (sees) {
#pragma unroll(in_registers ? steps : 2)
      for (int s = 0; s < steps; s++) {
        uint32_t fresh_high[4], fresh_low[4];
        if (!in_registers) load_query(s, fresh_high, fresh_low);
        const uint32_t(&high)[4] = in_registers ? q_high[in_registers ? s : 0] : fresh_high;
        const uint32_t(&low)[4] = in_registers ? q_low[in_registers ? s : 0] : fresh_low;
#pragma unroll
        for (int n = 0; n < key_tiles; n += 2) {
          uint32_t key[4];
          load_matrices(key, key_lane + (n * 8 * pitch + 2 * s) * 16);
          mma<T>(score[n], low, key[0], key[1]);
          mma<T>(score[n + 1], low, key[2], key[3]);
          mma<T>(score[n], high, key[0], key[1]);
          mma<T>(score[n + 1], high, key[2], key[3]);
        }
      }
    }

    // Where some rows do not see all, values that are not finite must not meet weights of zero.
    wait_copies();
    const bool whole = base >= block_last.first && base + Len <= block_first.end;
    bool is_odd = false;
    if (whole) {
      __syncthreads();
    } else {
      for (int i = 0; i < copies; i++) {
        const int at = i * threads + threadIdx.x, in_tile = at / chunks, chunk = at % chunks;
        const uint4 x = value_tile[in_tile * pitch + chunk];
        is_odd |= (not_finite2<T>(x.x) | not_finite2<T>(x.y) | not_finite2<T>(x.z) | not_finite2<T>(x.w)) != 0;
      }
      is_odd = __syncthreads_or(is_odd);
    }
    if (t + 1 < end) copy_tile(t + 1, k_pages, key_tile);

    uint32_t weight[key_tiles][2];
    if (sees) {
      const bool all = base >= warp_last.first && base + Len <= warp_first.end;
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float largest = peak[r];
#pragma unroll
        for (int n = 0; n < key_tiles; n++) {
#pragma unroll
          for (int i = 0; i < 2; i++) {
            float& s = score[n][2 * r + i];
            s *= restore[r];
            if (job.softcap > 0.0f) s = job.softcap * log2_e * tanhf(s / job.softcap);
            const int position = base + 8 * n + 2 * c + i;
            if (!all && (position < first[r] || position >= last[r])) s = -INFINITY;
            largest = fmaxf(largest, s);
          }
        }
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
        // Nothing was seen so far: all weights are zero.
        const float zero = largest == -INFINITY ? 0.0f : largest;
        const float keep = exp2_approx(peak[r] - zero);
        peak[r] = largest;
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < key_tiles; n++) {
          const float a = exp2_approx(score[n][2 * r] - zero + weight_bias);
          const float b = exp2_approx(score[n][2 * r + 1] - zero + weight_bias);
          sum += a + b;
          weight[n][r] = pack2<T>(a, b);
        }
        total[r] = fmaf(total[r], keep, sum);
        // The sum of a product that underflows and zero is zero without a sign.
#pragma unroll
        for (int d = 0; d < value_tiles; d++) {
          result[d][2 * r] = fmaf(result[d][2 * r], keep, 0.0f);
          result[d][2 * r + 1] = fmaf(result[d][2 * r + 1], keep, 0.0f);
        }
      }
    }

    if (is_odd) {
      // Values that are not finite are added here, for the rows that see them, and then are zeros for the others.
#pragma unroll 1
      for (int p = 0; sees && p < Len; p++) {
        uint32_t own[2] = {};
#pragma unroll
        for (int n = 0; n < key_tiles; n++) {
          if (n == p / 8) own[0] = weight[n][0], own[1] = weight[n][1];
        }
        float w[2];
        bool is_seen[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const float2 pair = unpack2<T>(__shfl_sync(0xffffffffu, own[r], (lane & 28) | p % 8 / 2));
          w[r] = p % 2 ? pair.y : pair.x;
          is_seen[r] = base + p >= first[r] && base + p < last[r];
        }
#pragma unroll
        for (int d = 0; d < value_tiles; d++) {
          const uint32_t pair = reinterpret_cast<const uint32_t*>(value_tile + p * pitch + d)[c];
          const uint32_t odd = not_finite2<T>(pair);
          const float2 x = unpack2<T>(pair);
#pragma unroll
          for (int r = 0; r < 2; r++) {
            if (is_seen[r] && odd & 0xffffu) result[d][2 * r] = fmaf(w[r], x.x, result[d][2 * r]);
            if (is_seen[r] && odd >> 16) result[d][2 * r + 1] = fmaf(w[r], x.y, result[d][2 * r + 1]);
          }
        }
      }
      __syncthreads();
      for (int i = threadIdx.x; i < Len * chunks; i += threads) {
        const int at = i / chunks * pitch + i % chunks;
        uint4 x = value_tile[at];
        x.x &= ~not_finite2<T>(x.x), x.y &= ~not_finite2<T>(x.y);
        x.z &= ~not_finite2<T>(x.z), x.w &= ~not_finite2<T>(x.w);
        value_tile[at] = x;
      }
      __syncthreads();
    }

    if (sees) {
#pragma unroll
      for (int s = 0; s < Len / 16; s++) {
        const uint32_t weights[4] = {weight[2 * s][0], weight[2 * s][1], weight[2 * s + 1][0], weight[2 * s + 1][1]};
#pragma unroll
        for (int d = 0; d < value_tiles; d += 2) {
          uint32_t value[4];
          load_matrices_transposed(value, value_lane + (16 * s * pitch + d) * 16);
          mma<T>(result[d], weights, value[0], value[1]);
          mma<T>(result[d + 1], weights, value[2], value[3]);
        }
      }
    }
  }

#pragma unroll
  for (int r = 0; r < 2; r++) {
    float sum = total[r];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const int index = own_query + 8 * r;
    if (index > last_query) continue;
    const int row = first_row + index / group, head = kv_head * group + index % group;
    float* to = job.out ? job.out + size_t(row) * job.out_stride + head * head_dim : nullptr;
    float keep = 1.0f;
    if (job.sinks) {
      const float sink = job.sinks[head] * log2_e, largest = fmaxf(peak[r], sink);
      keep = exp2_approx(peak[r] - largest);
      sum = fmaf(sum, keep, exp2_approx(sink - largest + weight_bias));
    }
    const bool is_empty = first[r] >= last[r];
    const float quotient = is_empty ? 0.0f : keep / sum;
#pragma unroll
    for (int d = 0; d < value_tiles; d++) {
      const int column = 8 * d + 2 * c;
      const float2 x = {result[d][2 * r] * quotient, result[d][2 * r + 1] * quotient};
      if (job.to.values && column < head_dim) job.to.store(row - job.to_first, head * head_dim + column, x.x, x.y);
      if (!to) continue;
      if (paired) {
        if (column < head_dim) *reinterpret_cast<float2*>(to + column) = x;
      } else {
        if (column < head_dim) to[column] = x.x;
        if (column + 1 < head_dim) to[column + 1] = x.y;
      }
    }
  }
}

#define MAKE(TYPE, NAME, DIM, LEN, BLOCKS)                                                                          \
  extern "C" __global__ void __launch_bounds__(threads, BLOCKS) attention_prefill_##NAME##_##DIM(                   \
      const float* q, int q_stride, const TYPE* k_pages, const TYPE* v_pages, int n_pages, int n_kv_heads,          \
      int page_shift, int head_dim, const uint32_t* words, const uint32_t* positions, const uint32_t* seq_of_row,   \
      const uint32_t* bases, const uint32_t* reaches, int n_words, int n_seqs, int window, int n_heads,             \
      float scale, float softcap, const float* sinks, float* out, int out_stride, const uint32_t* tiles,            \
      int n_tiles, int n_parts, uint32_t* to, int to_stride, int to_groups, int to_first) {                         \
    prefill<TYPE, DIM, LEN>(k_pages, v_pages, {n_pages, n_kv_heads, page_shift, head_dim},                          \
                            {words, positions, seq_of_row, bases, reaches, n_words, n_seqs, window},                \
                            {q, q_stride, n_heads, scale, softcap, sinks, out, out_stride, tiles, n_tiles, n_parts,  \
                             {to, to_stride, to_groups != 0}, to_first});                                           \
  }
#define MAKE_ALL(TYPE, NAME)  \
  MAKE(TYPE, NAME, 64, 32, 2) \
  MAKE(TYPE, NAME, 128, 64, 1) \
  MAKE(TYPE, NAME, 256, 32, 1)
