// Layers with a recurrent state: convolutions over few positions, and the gated delta rule.
//
// A state lies in a slot of a layer's states. A step says of each sequence, in three words, its first row, its number
// of rows and the slot that they go on from; and of each row the slot that the state after it goes to. No slot is
// 0xffffffff. A slot that is read is not written in the same step.
#include <stdint.h>

#include "activations.cuh"

constexpr uint32_t none = 0xffffffffu;
constexpr int threads = 128;

// The slots of a layer, each `slot_len` elements behind the one in front of it.
struct Slots {
  float* states;
  int slot_len, n_slots;

  // Where a slot begins; null is no slot.
  __device__ __forceinline__ float* at(uint32_t slot) const {
    if (slot == none) return nullptr;
    if (slot >= uint32_t(n_slots)) __trap();
    return states + size_t(slot) * slot_len;
  }
};

// Elements that lie one after the other.
template <int N>
struct Pack {
  float at[N];
};

template <int N>
__device__ __forceinline__ Pack<N> load(const float* from) {
  if constexpr (N == 4) {
    float4 all = *reinterpret_cast<const float4*>(from);
    return {{all.x, all.y, all.z, all.w}};
  } else {
    return {{*from}};
  }
}

template <int N>
__device__ __forceinline__ void store(float* to, const Pack<N>& x) {
  if constexpr (N == 4) {
    *reinterpret_cast<float4*>(to) = {x.at[0], x.at[1], x.at[2], x.at[3]};
  } else {
    *to = x.at[0];
  }
}

// out[t][c] = act(bias[c] + sum over i of taps[i][c] * x[t - n_taps + 1 + i][c]), zero before the beginning of a
// sequence; a thread has `N` channels of a row. A state is the last `n_taps - 1` rows of x, the oldest first.
// taps: [n_taps, width], bias: [width] or null. A row whose sequence is 0xffffffff is left as it is.
template <int N>
__device__ __forceinline__ void short_conv(
    const float* x, int x_stride, const float* taps, const float* bias, float* out, int out_stride,
    const Slots& slots, const uint32_t* seqs, const uint32_t* seq_of_row, const uint32_t* writes, int n_seqs,
    int n_taps, int width, int act) {
  const int col = (blockIdx.y * threads + threadIdx.x) * N;
  const uint32_t row = blockIdx.x, index = seq_of_row[row];
  if (col >= width || index == none) return;
  if (index >= uint32_t(n_seqs)) __trap();
  const uint32_t* seq = seqs + 3 * size_t(index);
  const int done = int(row - seq[0]);
  if (done < 0) __trap();
  const float* before = slots.at(seq[2]);
  float* after = slots.at(writes[row]);
  const int kept = n_taps - 1;

  Pack<N> sum = {};
  if (bias) sum = load<N>(bias + col);
  for (int first = 0; first < n_taps; first += 4) {
    // Four taps at a time, so that their loads are under way together.
    Pack<N> tap[4], value[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      tap[i] = {}, value[i] = {};
      if (first + i >= n_taps) continue;
      tap[i] = load<N>(taps + size_t(first + i) * width + col);
      const int back = kept - first - i;
      if (back <= done) {
        value[i] = load<N>(x + size_t(row - back) * x_stride + col);
      } else if (before) {
        value[i] = load<N>(before + size_t(kept + done - back) * width + col);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (first + i >= n_taps) break;
#pragma unroll
      for (int j = 0; j < N; j++) sum.at[j] = fmaf(tap[i].at[j], value[i].at[j], sum.at[j]);
      // The next row looks back to all but the oldest.
      if (after && first + i > 0) store<N>(after + size_t(first + i - 1) * width + col, value[i]);
    }
  }
#pragma unroll
  for (int j = 0; j < N; j++) sum.at[j] = activate(act, sum.at[j]);
  store<N>(out + size_t(row) * out_stride + col, sum);
}

#define MAKE(N)                                                                                                    \
  extern "C" __global__ void __launch_bounds__(threads) short_conv_##N(                                            \
      const float* x, int x_stride, const float* taps, const float* bias, float* out, int out_stride,              \
      float* states, int slot_len, int n_slots, const uint32_t* seqs, const uint32_t* seq_of_row,                  \
      const uint32_t* writes, int n_seqs, int n_taps, int width, int act) {                                        \
    short_conv<N>(x, x_stride, taps, bias, out, out_stride, {states, slot_len, n_slots}, seqs, seq_of_row, writes, \
                  n_seqs, n_taps, width, act);                                                                     \
  }

MAKE(1)
MAKE(4)
#undef MAKE

// Queues a copy of four bytes to shared memory.
__device__ __forceinline__ void copy_word(void* to, const void* from) {
  const uint32_t at = uint32_t(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
}

// Queues a copy of some values of a row to shared memory by a warp. `wide`: both begin at multiples of 16 bytes, and
// `n` is one of 4.
__device__ __forceinline__ void copy_async(float* to, const float* from, int n, bool wide) {
  const int lane = threadIdx.x % 32;
  if (wide) {
    const uint32_t at = uint32_t(__cvta_generic_to_shared(to));
    for (int i = lane; i < n / 4; i += 32)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at + 16 * i), "l"(from + 4 * i) : "memory");
  } else {
    for (int i = lane; i < n; i += 32) copy_word(to + i, from + i);
  }
}

__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

constexpr int parts = 8;               // of a column of the state, in a lane each
constexpr int lines = threads / parts;  // columns of a block, or half of them
constexpr int chunk = 8;               // rows whose keys are in shared memory together

// The sum over the lanes of a column, the same in all of them.
__device__ __forceinline__ float part_sum(float x) {
#pragma unroll
  for (int offset = parts / 2; offset; offset >>= 1) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

__device__ __forceinline__ float sum_of(const float4& x) { return (x.x + x.y) + (x.z + x.w); }

__device__ __forceinline__ float4 fma4(const float4& a, const float4& b, const float4& c) {
  return {fmaf(a.x, b.x, c.x), fmaf(a.y, b.y, c.y), fmaf(a.z, b.z, c.z), fmaf(a.w, b.w, c.w)};
}

__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// What a row of a head has in common for all columns, in two reads of 16 bytes.
struct alignas(16) RowFactors {
  float key, query, dot;  // what normalizes key and query, the latter times 1 / sqrt(k_dim); their product as they come
  float forget, write;
  uint32_t after;  // the slot that the state after the row goes to
};

// The gated delta rule (arXiv:2412.06464). A block has some columns of the values of one head through all rows of a
// sequence, one after the other; a column of the state lies in the registers of eight lanes, `Fours` times four
// elements in each. A lane has `Cols` columns, which the bits of a result do not show: two read keys less often, and
// one makes more blocks. A state is [n_v_heads][v_dim][k_dim].
//
// With q and k as they come, f and g the factors that normalize them, and S the state that has forgotten:
// d = write * (v - f kT S), then S + f k dT is the next state and g (qT S + f (qT k) d) the answer. So all sums over a
// column are known at once.
template <int Fours, int Cols>
__device__ __forceinline__ void delta_net(
    const float* q, int q_stride, const float* k, int k_stride, const float* v, int v_stride, const float* a,
    int a_stride, const float* b, int b_stride, const float* decay, const float* dt_bias, float* out, int out_stride,
    const Slots& slots, const uint32_t* seqs, const uint32_t* writes, int n_rows, int n_k_heads, int n_v_heads,
    int k_dim, int v_dim, float eps, bool tiled, bool wide) {
  constexpr int room = 4 * parts * Fours, columns = lines * Cols;
  __shared__ __align__(16) float keys[2][chunk][room], queries[2][chunk][room], values[2][chunk][columns];
  __shared__ float gates[2][2][chunk];  // of the decay, and of writing
  __shared__ uint32_t to_slots[2][chunk];
  __shared__ RowFactors factors[chunk];
  const uint32_t* seq = seqs + 3 * size_t(blockIdx.y);
  const uint32_t first_row = seq[0], rows = seq[1];
  if (rows == 0) return;
  if (first_row >= uint32_t(n_rows) || rows > uint32_t(n_rows) - first_row) __trap();

  const int n_tiles = (v_dim + columns - 1) / columns;
  const int head = blockIdx.x / n_tiles, first_col = blockIdx.x % n_tiles * columns;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int part = threadIdx.x % parts, line = threadIdx.x / parts;
  const int n_cols = min(columns, v_dim - first_col);
  const int key_head = tiled ? head % n_k_heads : head / (n_v_heads / n_k_heads);
  const bool whole = k_dim % 4 == 0;

  // Elements 4 * (part + parts * j) and the three behind it of columns `line` and `line + lines` are this lane's.
  float4 state[Cols][Fours];
  auto state_at = [&](int c, int j) {
    return (size_t(head) * v_dim + first_col + line + lines * c) * k_dim + 4 * (part + parts * j);
  };
  const float* before = slots.at(seq[2]);
#pragma unroll
  for (int c = 0; c < Cols; c++) {
#pragma unroll
    for (int j = 0; j < Fours; j++) {
      const int left = k_dim - 4 * (part + parts * j);
      state[c][j] = {};
      if (!before || line + lines * c >= n_cols || left <= 0) continue;
      const float* from = before + state_at(c, j);
      if (whole) {
        state[c][j] = __ldcs(reinterpret_cast<const float4*>(from));
      } else {
        state[c][j].x = from[0];
        if (left > 1) state[c][j].y = from[1];
        if (left > 2) state[c][j].z = from[2];
        if (left > 3) state[c][j].w = from[3];
      }
    }
  }

  // Behind the end of keys, and of the columns, everything is zero.
  for (int i = threadIdx.x; i < 2 * chunk * (room - k_dim); i += threads) {
    const int at = i / (room - k_dim), e = k_dim + i % (room - k_dim);
    (&keys[0][0][0])[at * room + e] = 0.0f;
    (&queries[0][0][0])[at * room + e] = 0.0f;
  }
  for (int i = threadIdx.x; i < 2 * chunk * (columns - n_cols); i += threads)
    (&values[0][0][0])[i / (columns - n_cols) * columns + n_cols + i % (columns - n_cols)] = 0.0f;

  // Queues the copies of a chunk's rows, two of them by each warp.
  auto stage = [&](uint32_t start) {
    const int half = start / chunk % 2, n = min(uint32_t(chunk), rows - start);
    for (int r = warp; r < n; r += threads / 32) {
      const size_t row = first_row + start + r;
      copy_async(keys[half][r], k + row * k_stride + key_head * k_dim, k_dim, wide);
      copy_async(queries[half][r], q + row * q_stride + key_head * k_dim, k_dim, wide);
      copy_async(values[half][r], v + row * v_stride + size_t(head) * v_dim + first_col, n_cols, false);
    }
    if (warp == 0 && lane < n) {
      const size_t row = first_row + start + lane;
      copy_word(&gates[half][0][lane], a + row * a_stride + head);
      copy_word(&gates[half][1][lane], b + row * b_stride + head);
      copy_word(&to_slots[half][lane], writes + row);
    }
  };

  const float root = 1.0f / sqrtf(float(k_dim)), decay_of = decay[head], bias_of = dt_bias[head];
  stage(0);
  for (uint32_t start = 0; start < rows; start += chunk) {
    const int half = start / chunk % 2, n = min(uint32_t(chunk), rows - start);
    wait_for_copies();
    __syncthreads();

    // The factors of a row, by the eight lanes that have a column elsewhere; two warps have the rows of a chunk.
    if (warp < 2) {
      const int r = line;
      float4 kk = {}, qq = {}, qk = {};
      float forget = 0.0f, write = 0.0f;
      if (r < n) {
#pragma unroll
        for (int j = 0; j < Fours; j++) {
          const float4 key = reinterpret_cast<const float4*>(keys[half][r])[part + parts * j];
          const float4 query = reinterpret_cast<const float4*>(queries[half][r])[part + parts * j];
          kk = fma4(key, key, kk), qq = fma4(query, query, qq), qk = fma4(query, key, qk);
        }
        forget = expf(decay_of * softplus(gates[half][0][r] + bias_of));
        write = sigmoid(gates[half][1][r]);
      }
      const float of_key = 1.0f / sqrtf(part_sum(sum_of(kk)) + eps);
      const float of_query = root / sqrtf(part_sum(sum_of(qq)) + eps);
      const float dot = part_sum(sum_of(qk));
      if (r < n && part == 0) factors[r] = {of_key, of_query, dot, forget, write, to_slots[half][r]};
    }
    // The copies go to where the chunk before was, which all threads have left.
    if (start + chunk < rows) stage(start + chunk);
    __syncthreads();

    for (int r = 0; r < n; r++) {
      const size_t row = first_row + start + r;
      const RowFactors f = factors[r];
      float4 key[Fours], of_key[Cols] = {}, of_query[Cols] = {};
#pragma unroll
      for (int j = 0; j < Fours; j++) {
        key[j] = reinterpret_cast<const float4*>(keys[half][r])[part + parts * j];
        const float4 query = reinterpret_cast<const float4*>(queries[half][r])[part + parts * j];
#pragma unroll
        for (int c = 0; c < Cols; c++) {
          float4& s = state[c][j];
          s = {s.x * f.forget, s.y * f.forget, s.z * f.forget, s.w * f.forget};
          of_key[c] = fma4(key[j], s, of_key[c]);
          of_query[c] = fma4(query, s, of_query[c]);
        }
      }
      float* after = slots.at(f.after);
#pragma unroll
      for (int c = 0; c < Cols; c++) {
        const int in_tile = line + lines * c;
        const float known = part_sum(sum_of(of_key[c])), answer = part_sum(sum_of(of_query[c]));
        const float change = fmaf(-known, f.key, values[half][r][in_tile]) * f.write * f.key;
        const float4 changes = {change, change, change, change};
#pragma unroll
        for (int j = 0; j < Fours; j++) state[c][j] = fma4(key[j], changes, state[c][j]);
        if (part == 0 && in_tile < n_cols)
          out[row * out_stride + size_t(head) * v_dim + first_col + in_tile] = f.query * fmaf(f.dot, change, answer);
        if (!after || in_tile >= n_cols) continue;
#pragma unroll
        for (int j = 0; j < Fours; j++) {
          const int left = k_dim - 4 * (part + parts * j);
          float* to = after + state_at(c, j);
          if (left <= 0) continue;
          if (whole) {
            *reinterpret_cast<float4*>(to) = state[c][j];
          } else {
            to[0] = state[c][j].x;
            if (left > 1) to[1] = state[c][j].y;
            if (left > 2) to[2] = state[c][j].z;
            if (left > 3) to[3] = state[c][j].w;
          }
        }
      }
    }
  }
}

// q, k: [n_rows, n_k_heads * k_dim], v, out: [n_rows, n_v_heads * v_dim], a, b: [n_rows, n_v_heads], decay, dt_bias:
// [n_v_heads]. `k_dim` is at most 32 * `Fours`. tiled: value head h has key head h % n_k_heads. wide: q, k and their
// heads begin at multiples of 16 bytes.
#define MAKE(FOURS, COLS)                                                                                         \
  extern "C" __global__ void __launch_bounds__(threads) delta_net_##FOURS##_##COLS(                               \
      const float* q, int q_stride, const float* k, int k_stride, const float* v, int v_stride, const float* a,   \
      int a_stride, const float* b, int b_stride, const float* decay, const float* dt_bias, float* out,           \
      int out_stride, float* states, int slot_len, int n_slots, const uint32_t* seqs, const uint32_t* writes,     \
      int n_rows, int n_k_heads, int n_v_heads, int k_dim, int v_dim, float eps, int tiled, int wide) {           \
    delta_net<FOURS, COLS>(q, q_stride, k, k_stride, v, v_stride, a, a_stride, b, b_stride, decay, dt_bias, out,  \
                           out_stride, {states, slot_len, n_slots}, seqs, writes, n_rows, n_k_heads, n_v_heads,   \
                           k_dim, v_dim, eps, tiled, wide);                                                       \
  }
#define MAKE_BOTH(FOURS) \
  MAKE(FOURS, 1)         \
  MAKE(FOURS, 2)

MAKE_BOTH(1)
MAKE_BOTH(2)
MAKE_BOTH(4)
MAKE_BOTH(8)
