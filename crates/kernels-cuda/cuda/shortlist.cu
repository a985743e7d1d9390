// Shortlists of rows of logits: the best tokens, tokens that are asked for by themselves, the shares of a whole row
// and draws from them. Logits are compared by their bits, and shares are integers, so that a list is the same on
// every device, whatever the order in which blocks of threads run.
//
// A row is read by as many blocks of threads as it has chunks. The one that ends last finishes the row, so that a
// list is made by one launch, and by a second one where shares are wanted.
#include <stdint.h>

constexpr int threads = 256, warps = threads / 32;
constexpr int block_len = 64;    // logits of which the largest is found first
constexpr int chunk_len = 4096;  // logits that a block of threads reads
constexpr int loads = chunk_len / (4 * threads);
constexpr uint32_t max_best = 256, max_draws = 64;
constexpr uint32_t none = 0xffffffff;
constexpr uint32_t unusable = 0xffffffff;  // the key of NaN and plus infinity
constexpr uint32_t minus_infinity = 0xff800000;
constexpr uint32_t last_index = 0xffffff;
constexpr uint32_t all_lanes = 0xffffffff;

// Keys are in the order of their logits, minus zero below zero; minus infinity has 0.
__device__ __forceinline__ uint32_t key_of(uint32_t bits) {
  if (bits == minus_infinity) return 0;
  if ((bits & 0x7fffffff) >= 0x7f800000) return unusable;
  return bits ^ (uint32_t(int32_t(bits) >> 31) | 0x80000000);
}

// The bits of the logit that a key is of.
__device__ __forceinline__ uint32_t bits_of(uint32_t key) { return key >> 31 ? key ^ 0x80000000 : ~key; }

// A row of logits, of which the first `n_tokens` are of tokens.
struct Logits {
  const uint32_t* values;
  int n_tokens;
  bool is_aligned;

  __device__ __forceinline__ Logits(const uint32_t* all, size_t row, int stride, int n)
      : values(all + row * stride), n_tokens(n), is_aligned(reinterpret_cast<size_t>(values) % 16 == 0) {}

  // The bits of four logits, minus infinity behind the last token; `id` is a multiple of 4.
  __device__ __forceinline__ uint4 four(int id) const {
    if (is_aligned && id + 4 <= n_tokens) return *reinterpret_cast<const uint4*>(values + id);
    auto one = [&](int i) { return id + i < n_tokens ? values[id + i] : minus_infinity; };
    return {one(0), one(1), one(2), one(3)};
  }

  // The bits of this thread's logits of its chunk: four at `id_of(j)` for each of the loads, all of them under way at
  // once where the chunk is whole.
  __device__ __forceinline__ void chunk(uint4 (&bits)[loads]) const {
    if (is_aligned && int(blockIdx.x + 1) * chunk_len <= n_tokens) {
#pragma unroll
      for (int j = 0; j < loads; j++) bits[j] = *reinterpret_cast<const uint4*>(values + id_of(j));
    } else {
#pragma unroll
      for (int j = 0; j < loads; j++) bits[j] = four(id_of(j));
    }
  }

  static __device__ __forceinline__ int id_of(int load) {
    return int(blockIdx.x) * chunk_len + (load * threads + int(threadIdx.x)) * 4;
  }
};

// Whether this block of threads is the last one of its row. It then sees what the others have written. The counter
// is zero again behind the last one.
__device__ __forceinline__ bool is_last(uint32_t* counter) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicInc(counter, gridDim.x - 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  return last;
}

// The best token of each row, the lowest one among equals; zeros of either sign are equals. A block of threads for
// each chunk and row. best, counters: [n_rows], zero before and behind a launch. chosen: [n_rows, 2], the token and
// the bits of its logit; where a logit is NaN or plus infinity it is `none` and that logit's bits, where there is no
// token it is `none` and minus infinity. tokens: [n_rows] or null, the token, and 0 where there is none.
extern "C" __global__ void __launch_bounds__(threads) shortlist_greedy(
    const uint32_t* values, int stride, int n_tokens, unsigned long long* best, uint32_t* counters, uint32_t* chosen,
    uint32_t* tokens) {
  const Logits row(values, blockIdx.y, stride, n_tokens);
  uint4 bits[loads];
  row.chunk(bits);
  uint32_t most = 0;
  int at = 0;
  auto take = [&](uint32_t bits, int id) {
    const uint32_t key = key_of(bits == 0x80000000 ? 0 : bits);
    if (key > most) most = key, at = id;
  };
#pragma unroll
  for (int j = 0; j < loads; j++) {
    const int id = row.id_of(j);
    take(bits[j].x, id), take(bits[j].y, id + 1), take(bits[j].z, id + 2), take(bits[j].w, id + 3);
  }

  // Keys and, among equals, the lowest token: of the warps, of the block of threads, of the row.
  __shared__ uint32_t keys[warps], ids[warps];
  auto of_warp = [&](uint32_t key, uint32_t id) {
    most = __reduce_max_sync(all_lanes, key);
    at = __reduce_min_sync(all_lanes, key == most ? id : none);
  };
  const int lane = threadIdx.x % 32;
  of_warp(most, at);
  if (lane == 0) keys[threadIdx.x / 32] = most, ids[threadIdx.x / 32] = at;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  of_warp(lane < warps ? keys[lane] : 0, lane < warps ? ids[lane] : none);
  if (lane != 0) return;
  atomicMax(best + blockIdx.y, static_cast<unsigned long long>(most) << 32 | ~uint32_t(at));
  __threadfence();
  if (atomicInc(counters + blockIdx.y, gridDim.x - 1) != gridDim.x - 1) return;
  __threadfence();
  const unsigned long long found = atomicExch(best + blockIdx.y, 0ull);
  const uint32_t key = found >> 32, id = ~uint32_t(found);
  const bool is_token = key != 0 && key != unusable;
  chosen[2 * blockIdx.y] = is_token ? id : none;
  chosen[2 * blockIdx.y + 1] = key ? row.values[id] : minus_infinity;
  if (tokens) tokens[blockIdx.y] = is_token ? id : 0;
}

// What is wanted of a row, as `src/ops/shortlist.rs` writes it. Places are in words of what is wanted, that of the
// list in words of the lists.
struct Wanted {
  uint32_t row, n_best, n_tokens, mask;
  uint32_t listed, n_listed, out, factor;
  int range;
  uint32_t draws, n_draws, unused;

  __device__ __forceinline__ explicit Wanted(const uint32_t* wants) {
    const uint4* from = reinterpret_cast<const uint4*>(wants) + 3 * blockIdx.y;
    uint4* to = reinterpret_cast<uint4*>(this);
    to[0] = from[0], to[1] = from[1], to[2] = from[2];
  }
};

// The keys of a row; those of tokens that may not come are 0.
struct Keys : Logits {
  const uint32_t* mask;

  __device__ __forceinline__ Keys(const Wanted& want, const uint32_t* wants, const uint32_t* all, int stride)
      : Logits(all, want.row, stride, want.n_tokens), mask(want.mask == none ? nullptr : wants + want.mask) {}

  // The keys of four logits, whose bits `four` has given.
  __device__ __forceinline__ uint4 of(int id, uint4 bits) const {
    uint32_t may = 15;
    if (mask && id < n_tokens) may = mask[id / 32] >> id % 32;
    return {may & 1 ? key_of(bits.x) : 0, may & 2 ? key_of(bits.y) : 0, may & 4 ? key_of(bits.z) : 0,
            may & 8 ? key_of(bits.w) : 0};
  }

  // The key of one.
  __device__ __forceinline__ uint32_t at(int id) const {
    const bool may = id < n_tokens && (!mask || mask[id / 32] >> id % 32 & 1);
    return may ? key_of(values[id]) : 0;
  }
};

constexpr int max_candidates = 2048;

// What the threads that finish a row share.
struct Shared {
  union {
    uint64_t candidates[max_candidates];
    uint32_t maxima[2 * max_candidates];
  };
  uint64_t taken[max_best];
  uint32_t chosen[max_best];  // blocks
  uint32_t bins[threads], sums[warps];
  uint64_t least;
  uint32_t n_left, n_chosen, n_candidates, n_taken;
  bool is_settled;
};

// The sum of the values up to each thread's own, in the order of the threads.
template <class T>
__device__ __forceinline__ T up_to(T x, T* sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int step = 1; step < 32; step <<= 1) {
    const T below = __shfl_up_sync(all_lanes, x, step);
    if (lane >= step) x += below;
  }
  if (lane == 31) sums[warp] = x;
  __syncthreads();
  for (int w = 0; w < warp; w++) x += sums[w];
  return x;
}

// A value that as many items as are wanted, or all above zero where these are not as many, are not below. Items of 56
// bits that differ unless they are zero are counted by eight bits at a time, from the highest on, among those that
// begin like the least that is wanted.
template <class Item>
__device__ __forceinline__ uint64_t least_of_best(Shared& s, Item item, int n, uint32_t n_best) {
  __syncthreads();
  s.bins[threadIdx.x] = 0;
  if (threadIdx.x == 0) s.least = 0, s.n_left = n_best, s.is_settled = false;
  __syncthreads();
  for (int shift = 48; !s.is_settled; shift -= 8) {
    const uint64_t like = s.least >> shift >> 8;
    for (int i = threadIdx.x; i < n; i += threads) {
      const uint64_t x = item(i);
      if (x != 0 && x >> shift >> 8 == like) atomicAdd(&s.bins[x >> shift & 255], 1u);
    }
    __syncthreads();
    // Large digits first.
    const uint32_t digit = threads - 1 - threadIdx.x, own = s.bins[digit], left = s.n_left;
    s.bins[digit] = 0;
    const uint32_t upto = up_to(own, s.sums), before = upto - own;
    if (before < left && left <= upto) {
      s.least |= uint64_t(digit) << shift;
      s.n_left = left - before;
      // All that begin so are wanted.
      if (upto == left) s.is_settled = true;
    }
    if (threadIdx.x == threads - 1 && upto < left) s.least = 1, s.is_settled = true;
    __syncthreads();
  }
  return s.least;
}

// Takes listed tokens out of their rows, and finds the best of the others; a block of threads for each chunk of 4096
// logits and row. maxima: [n_rows, n_blocks], largest: [n_rows], keys; counters: [n_rows], zero before and behind a
// launch.
extern "C" __global__ void __launch_bounds__(threads) shortlist_select(
    const uint32_t* __restrict__ wants, uint32_t* values, int stride, int n_logits, uint32_t* maxima,
    uint32_t* largest, uint32_t* counters, uint32_t* lists) {
  const Wanted want(wants);
  if (want.row == none) return;
  const Keys row(want, wants, values, stride);
  const int n_blocks = (n_logits + block_len - 1) / block_len;
  maxima += size_t(blockIdx.y) * n_blocks;

  // Listed tokens: each in the block of threads that reads its chunk.
  uint32_t* logits = values + size_t(want.row) * stride;
  for (uint32_t i = threadIdx.x; i < want.n_listed; i += threads) {
    const uint32_t id = wants[want.listed + i];
    if (id / chunk_len != blockIdx.x) continue;
    lists[want.out + 1 + i] = logits[id];
    logits[id] = minus_infinity;
  }
  if (want.n_listed) __syncthreads();

  // The largest key of each block of 64.
  uint4 bits[loads];
  row.chunk(bits);
#pragma unroll
  for (int j = 0; j < loads; j++) {
    const int id = row.id_of(j);
    const uint4 keys = row.of(id, bits[j]);
    uint32_t most = max(max(keys.x, keys.y), max(keys.z, keys.w));
    for (int step = block_len / 8; step; step >>= 1) most = max(most, __shfl_xor_sync(all_lanes, most, step));
    if (id % block_len == 0 && id < n_logits) maxima[id / block_len] = most;
  }
  if (!is_last(counters + blockIdx.y)) return;

  // The largest key of all.
  __shared__ Shared s;
  const bool fits = n_blocks <= 2 * max_candidates;
  uint32_t most = 0;
  for (int b = threadIdx.x; b < n_blocks; b += threads) {
    const uint32_t key = maxima[b];
    most = max(most, key);
    if (fits) s.maxima[b] = key;
  }
  most = __reduce_max_sync(all_lanes, most);
  if (threadIdx.x % 32 == 0) s.sums[threadIdx.x / 32] = most;
  if (threadIdx.x == 0) s.n_chosen = s.n_candidates = s.n_taken = 0;
  __syncthreads();
  for (int w = 0; w < warps; w++) most = max(most, s.sums[w]);
  if (threadIdx.x == 0) largest[blockIdx.y] = most;
  if (most == 0 || most == unusable) {
    if (threadIdx.x == 0) lists[want.out] = most == 0 ? 0 : none;
    return;
  }

  // As many blocks as tokens are wanted, with the largest maxima and, among equals, the lowest numbers: the best
  // tokens are in these.
  auto block_item = [&](int b) {
    const uint64_t key = fits ? s.maxima[b] : maxima[b];
    return key ? key << 24 | (last_index - b) : 0;
  };
  const uint64_t least_block = least_of_best(s, block_item, n_blocks, want.n_best);
  for (int b = threadIdx.x; b < n_blocks; b += threads) {
    if (block_item(b) >= least_block) s.chosen[atomicAdd(&s.n_chosen, 1u)] = b;
  }
  __syncthreads();

  // Of their tokens, those that are not below the least of the maxima, of which there are usually few.
  const uint32_t least_key = max(uint32_t(least_block >> 24), 1);
  const int n_fours = s.n_chosen * (block_len / 4);
  auto id_of = [&](int i) { return int(s.chosen[i / (block_len / 4)]) * block_len + i % (block_len / 4) * 4; };
  auto token_item = [](uint32_t key, int id) { return uint64_t(key) << 24 | (last_index - id); };
  for (int begin = threadIdx.x; begin < n_fours; begin += loads * threads) {
    uint4 bits[loads];
#pragma unroll
    for (int j = 0; j < loads; j++) {
      const int i = begin + j * threads;
      if (i < n_fours) bits[j] = row.four(id_of(i));
    }
#pragma unroll
    for (int j = 0; j < loads; j++) {
      const int i = begin + j * threads;
      if (i >= n_fours) continue;
      const int id = id_of(i);
      const uint4 keys = row.of(id, bits[j]);
      auto add = [&](uint32_t key, int id) {
        if (key < least_key) return;
        const uint32_t at = atomicAdd(&s.n_candidates, 1u);
        if (at < max_candidates) s.candidates[at] = token_item(key, id);
      };
      add(keys.x, id), add(keys.y, id + 1), add(keys.z, id + 2), add(keys.w, id + 3);
    }
  }
  __syncthreads();

  // The best of these.
  const bool all_are_here = s.n_candidates <= max_candidates;
  const int n_items = all_are_here ? s.n_candidates : s.n_chosen * block_len;
  auto item = [&](int i) {
    if (all_are_here) return s.candidates[i];
    const int id = s.chosen[i / block_len] * block_len + i % block_len;
    const uint32_t key = row.at(id);
    return key ? token_item(key, id) : uint64_t(0);
  };
  const uint64_t least = least_of_best(s, item, n_items, want.n_best);
  for (int i = threadIdx.x; i < n_items; i += threads) {
    const uint64_t x = item(i);
    if (x >= least) s.taken[atomicAdd(&s.n_taken, 1u)] = x;
  }
  __syncthreads();

  // Each to its place among them.
  if (threadIdx.x < s.n_taken) {
    const uint64_t x = s.taken[threadIdx.x];
    uint32_t place = 0;
    for (uint32_t i = 0; i < s.n_taken; i++) place += s.taken[i] > x;
    uint32_t* to = lists + want.out + 1 + want.n_listed + 2 * place;
    to[0] = last_index - (uint32_t(x) & last_index);
    to[1] = bits_of(x >> 24);
  }
  if (threadIdx.x == 0) lists[want.out] = s.n_taken;
}

// Shares of logits beside the largest of them, 2^39 e^((logit - max) * scale) as integers of 64 bits. Scaling by a
// power of two and cutting off are exact, and all else is done with integers.
struct Shares {
  float unit;
  int max;
  uint32_t factor, shift;

  __device__ __forceinline__ Shares(uint32_t max_bits, uint32_t factor, int range) : factor(factor) {
    const int exponent = ::max(int(max_bits >> 23 & 255) - 127, range);
    unit = __int_as_float((29 - exponent + 127) << 23);
    max = __float2int_rz(__uint_as_float(max_bits) * unit);
    shift = ::max(30 - (exponent - range), 0);
  }

  // The share of a token by its key; none of what may not come.
  __device__ __forceinline__ uint64_t of(uint32_t key) const {
    if (key == 0) return 0;
    const int units = __float2int_rz(__uint_as_float(bits_of(key)) * unit);
    const uint64_t log = uint64_t(uint32_t(max) - uint32_t(units)) * factor >> shift;
    // (1 - 2^-x) / x as a polynomial in -x, in units of 2^-31.
    const uint32_t rest = uint32_t(log) << 7;
    uint32_t power = 19784458 - __umulhi(rest, 2034029);
    power = 118765909 - __umulhi(rest, power);
    power = 515789246 - __umulhi(rest, power);
    power = 1488515590 - __umulhi(rest, power);
    power = 0x80000000 - __umulhi(rest, power);
    return uint64_t(power) << 8 >> min(uint32_t(log >> 25), 63);
  }
};

// The shares of each row together, and the tokens at places among them, in the order of the tokens; a block of threads
// for each chunk of 4096 logits and row. largest: [n_rows], as `shortlist_select` has left it; sums: [n_rows, n_blocks];
// counters as there.
extern "C" __global__ void __launch_bounds__(threads) shortlist_weigh(
    const uint32_t* __restrict__ wants, const uint32_t* values, int stride, int n_logits, const uint32_t* largest,
    uint64_t* sums, uint32_t* counters, uint32_t* lists) {
  const Wanted want(wants);
  if (want.row == none || want.factor == 0) return;
  const Keys row(want, wants, values, stride);
  const uint32_t most = largest[blockIdx.y];
  uint32_t* out = lists + want.out + 1 + want.n_listed + 2 * want.n_best;
  if (most == 0 || most == unusable) {
    if (blockIdx.x == 0 && threadIdx.x < 2) out[threadIdx.x] = 0;
    return;
  }
  const Shares shares(bits_of(most), want.factor, want.range);
  const int n_blocks = (n_logits + block_len - 1) / block_len;
  sums += size_t(blockIdx.y) * n_blocks;

  // Sums of blocks of 64.
  uint4 bits[loads];
  row.chunk(bits);
#pragma unroll
  for (int j = 0; j < loads; j++) {
    const int id = row.id_of(j);
    const uint4 keys = row.of(id, bits[j]);
    uint64_t sum = shares.of(keys.x) + shares.of(keys.y) + shares.of(keys.z) + shares.of(keys.w);
    for (int step = block_len / 8; step; step >>= 1) sum += __shfl_xor_sync(all_lanes, sum, step);
    if (id % block_len == 0 && id < n_logits) sums[id / block_len] = sum;
  }
  if (!is_last(counters + blockIdx.y)) return;

  // The total; each thread has blocks that follow one another.
  __shared__ uint64_t partial[warps], left[max_draws];
  __shared__ uint32_t found[max_draws];
  const int n_own = (n_blocks + threads - 1) / threads;
  const int begin = min(int(threadIdx.x) * n_own, n_blocks), end = min(begin + n_own, n_blocks);
  uint64_t own = 0;
  for (int b = begin; b < end; b++) own += sums[b];
  const uint64_t upto = up_to(own, partial), before = upto - own;
  uint64_t total = 0;
  if (threadIdx.x == threads - 1) left[0] = upto;
  __syncthreads();
  total = left[0];
  __syncthreads();
  if (threadIdx.x == 0) out[0] = uint32_t(total), out[1] = uint32_t(total >> 32);

  // The block of each draw, then its token; each warp has every eighth draw.
  for (uint32_t i = 0; i < want.n_draws; i++) {
    const uint32_t place = wants[want.draws + i];
    // The place times the total, in units of 2^-32.
    const uint64_t goal = (total >> 32) * place + __umulhi(uint32_t(total), place);
    if (goal < before || goal >= upto) continue;
    uint64_t rest = goal - before;
    int b = begin;
    for (; sums[b] <= rest; b++) rest -= sums[b];
    found[i] = b, left[i] = rest;
  }
  __syncthreads();
  const int lane = threadIdx.x % 32;
  for (uint32_t i = threadIdx.x / 32; i < want.n_draws; i += warps) {
    const uint32_t id = found[i] * block_len + 2 * lane;
    const uint64_t rest = left[i], one = shares.of(row.at(id)), two = shares.of(row.at(id + 1));
    uint64_t sum = one + two;
    for (int step = 1; step < 32; step <<= 1) {
      const uint64_t below = __shfl_up_sync(all_lanes, sum, step);
      if (lane >= step) sum += below;
    }
    // The first lane whose shares go beyond the place.
    const uint32_t beyond = __ballot_sync(all_lanes, sum > rest);
    if (lane != __ffs(beyond) - 1) continue;
    const uint32_t token = sum - two > rest ? id : id + 1;
    out[2 + 2 * i] = token;
    out[3 + 2 * i] = row.values[token];
  }
}

// Where a row's next token comes from, as `src/ops/shortlist/feed.rs` writes it. Places are in words of the lists.
struct Source {
  uint32_t token;  // a token, that of the best ones if one is drawn of these; `none` where a row keeps its own
  uint32_t list;   // the list of the best tokens that one is drawn of, `none` where it is that token
  uint32_t total;  // the shares of the whole row, `none` where a draw is of the best tokens alone
  uint32_t factor;
  int range;
  uint32_t top_p, min_p, draw;  // in units of 2^-32; `top_p` is `none` where nothing is cut off

  __device__ __forceinline__ explicit Source(const uint32_t* sources) {
    const uint4* from = reinterpret_cast<const uint4*>(sources) + 2 * blockIdx.x;
    uint4* to = reinterpret_cast<uint4*>(this);
    to[0] = from[0], to[1] = from[1];
  }
};
constexpr uint32_t by_id = 0x80000000;  // of `list`: the draw goes over tokens in their order, not the best first

// A part of a number in units of 2^-32.
__device__ __forceinline__ uint64_t part_of(uint64_t x, uint32_t part) {
  return (x >> 32) * part + (uint64_t(uint32_t(x)) * part >> 32);
}

// The token that top-k, top-p and min-p lead to, by shares; a thread for each of the best tokens. Only tokens that are
// kept have shares behind the filters, and these are the first ones.
__device__ __forceinline__ uint32_t draw_of_best(const uint32_t* lists, const Source& from) {
  __shared__ uint64_t sums[warps], shares[threads], all, left;
  __shared__ uint32_t ids[threads], found;
  const uint32_t n_found = lists[from.list & ~by_id], n = n_found == none ? 0 : min(n_found, max_best);
  if (n == 0) return 0;
  const uint32_t* token = lists + from.token + 2 * threadIdx.x;
  const bool is_token = threadIdx.x < n;
  const uint32_t id = is_token ? token[0] : none;
  const Shares weigh(lists[from.token + 1], from.factor, from.range);
  const uint64_t own = is_token ? weigh.of(key_of(token[1])) : 0, upto = up_to(own, sums), before = upto - own;
  if (threadIdx.x == 0) found = id;
  if (threadIdx.x == threads - 1) all = upto;
  if (threadIdx.x == 0) shares[0] = own;
  __syncthreads();
  uint64_t sum = all;
  if (from.total != none) sum = uint64_t(lists[from.total]) | uint64_t(lists[from.total + 1]) << 32;
  const bool is_nucleus = from.top_p == none || before < part_of(sum, from.top_p);
  const bool is_kept = is_token && is_nucleus && own >= part_of(shares[0], from.min_p);
  const uint32_t n_kept = __syncthreads_count(is_kept);
  shares[threadIdx.x] = is_kept ? own : 0;
  ids[threadIdx.x] = id;
  if (is_kept && threadIdx.x + 1 == n_kept) left = upto;
  __syncthreads();
  const uint64_t goal = part_of(left, from.draw);
  uint64_t first = before;
  if (from.list & by_id) {
    first = 0;
    for (uint32_t i = 0; i < n_kept; i++) first += ids[i] < id ? shares[i] : 0;
  }
  if (is_kept && first <= goal && goal < first + own) found = id;
  __syncthreads();
  return found;
}

// Writes tokens of lists where the next step looks for its tokens, and, for the host, behind the lists. A block of threads
// for each row. A list that has no token may have anything in its place; the row then gets any token.
extern "C" __global__ void __launch_bounds__(threads) shortlist_feed(
    uint32_t* lists, const uint32_t* sources, uint32_t fed, uint32_t n_tokens, uint32_t* tokens) {
  const Source from(sources);
  if (from.token == none) return;
  const uint32_t id = from.list == none ? lists[from.token] : draw_of_best(lists, from);
  if (threadIdx.x != 0) return;
  const uint32_t found = id < n_tokens ? id : 0;
  tokens[blockIdx.x] = found;
  lists[fed + blockIdx.x] = found;
}
