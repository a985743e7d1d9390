// Rotary position embeddings: the cosines and sines of a step's rows, and heads that turn by them.
#include <cstdint>

// An angle, 0 or more, less `quadrant` quarter turns and any number of turns.
struct Reduced {
  float angle;  // in [-pi / 4, pi / 4]
  uint32_t quadrant;
};

// The 64 bits of 1 / 2 pi that follow bit `at`, counted from 32 zeros in front of its binary point.
__device__ __forceinline__ uint64_t inverse_turn(uint32_t at) {
  const uint32_t words[7] = {0, 0x28be60dbu, 0x9391054au, 0x7f09d5f4u, 0x7d4d3770u, 0x36d8a566u, 0x4f10e410u};
  uint32_t a = 0, b = 0, c = 0;
#pragma unroll
  for (int i = 0; i < 5; i++) {
    if (at / 32 == i) a = words[i], b = words[i + 1], c = words[i + 2];
  }
  return uint64_t(__funnelshift_l(b, a, at)) << 32 | __funnelshift_l(c, b, at);
}

// The angle's bits times the bits of 1 / 2 pi that matter at its exponent (M. Payne and R. Hanek, 1983).
__device__ __forceinline__ Reduced reduce(float angle) {
  if (angle < 0.78f) return {angle, 0};
  // The angle is mantissa * 2^e; bits of 1 / 2 pi in front of bit e behind the point make whole turns.
  const uint32_t bits = __float_as_uint(angle);
  const uint32_t mantissa = (bits & 0x7fffff) | 0x800000;
  const uint64_t inverse = inverse_turn(::min((bits >> 23) + 32 - 150, 159u));
  // The turn in units of 2^-32, whole turns dropped.
  const uint32_t turn = mantissa * uint32_t(inverse >> 32) + __umulhi(mantissa, uint32_t(inverse));
  const uint32_t quadrant = (turn + 0x20000000) >> 30;
  const int rest = int(turn - (quadrant << 30));
  return {float(rest) * 1.4629180792671596e-9f, quadrant & 3};  // 2 pi / 2^32
}

// Taylor's series, to where the next term is below 3e-9.
__device__ __forceinline__ float sine(float x) {
  const float z = x * x;
  const float p = fmaf(z, fmaf(z, fmaf(z, 2.7557319e-6f, -1.9841270e-4f), 8.3333333e-3f), -1.6666667e-1f);
  return fmaf(x * z, p, x);
}

__device__ __forceinline__ float cosine(float x) {
  const float z = x * x;
  const float p = fmaf(z, fmaf(z, fmaf(z, -2.7557319e-7f, 2.4801587e-5f), -1.3888889e-3f), 4.1666667e-2f);
  return fmaf(z * z, p, fmaf(z, -0.5f, 1.0f));
}

// Cosines, then sines, of position * inv_freq, times mscale; one block for each row. positions: [n_components, n_rows]
// with `component_stride` from one component to the next; inv_freq: [n_pairs]; components: [n_pairs] of 0.0, 1.0 or
// 2.0, or null where positions have one; out: [n_rows, 2 * n_pairs].
extern "C" __global__ void __launch_bounds__(128) rope_table(
    const uint32_t* positions, int component_stride, const float* inv_freq, const float* components, float mscale,
    float* out, int out_stride, int n_pairs) {
  float* row = out + size_t(blockIdx.x) * out_stride;
  for (int i = threadIdx.x; i < n_pairs; i += 128) {
    const int component = components ? int(components[i]) : 0;
    const float angle = float(positions[size_t(component) * component_stride + blockIdx.x]) * inv_freq[i];
    const Reduced reduced = reduce(fabsf(angle));
    const float s = sine(reduced.angle), c = cosine(reduced.angle);
    const uint32_t quadrant = reduced.quadrant;
    const float cos_angle = quadrant & 1 ? s : c, sin_angle = quadrant & 1 ? c : s;
    row[i] = (quadrant == 1 || quadrant == 2 ? -cos_angle : cos_angle) * mscale;
    row[n_pairs + i] = ((quadrant >= 2) != (angle < 0.0f) ? -sin_angle : sin_angle) * mscale;
  }
}

// Turns pairs of each head by the row's cosines and sines; one block for each row. x, out: [n_rows, n_heads * head_dim],
// which may be the same; table: [n_rows, 2 * n_pairs]. Pairs are neighbours, or lie `n_pairs` apart.
extern "C" __global__ void __launch_bounds__(128) rope(
    const float* x, int x_stride, const float* table, int table_stride, float* out, int out_stride, int n_heads,
    int head_dim, int n_pairs, int neighbours) {
  const float* from = x + size_t(blockIdx.x) * x_stride;
  const float* turn = table + size_t(blockIdx.x) * table_stride;
  float* to = out + size_t(blockIdx.x) * out_stride;
  // A head's pairs, then its columns that do not turn.
  const int per_head = head_dim - n_pairs;
  for (int i = threadIdx.x; i < n_heads * per_head; i += 128) {
    const int head = i / per_head * head_dim, item = i % per_head;
    if (item >= n_pairs) {
      if (out != x) to[head + n_pairs + item] = from[head + n_pairs + item];
      continue;
    }
    const int a = head + (neighbours ? 2 * item : item), b = neighbours ? a + 1 : a + n_pairs;
    const float c = turn[item], s = turn[n_pairs + item], u = from[a], v = from[b];
    to[a] = fmaf(u, c, -(v * s));
    to[b] = fmaf(v, c, u * s);
  }
}
