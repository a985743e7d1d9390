// Products of packed matrices with many rows of activations by the tensor cores of compute capability 9.0, in half
// precision: F16 weights with F16 activations, all others with both in BF16. Sums are F32.
//
// Activations lie in shared memory, where a warp brings them by bulk copies some steps ahead. Weights never do: a warp of
// four that multiply together has 16 rows, and unpacks them to the fragments that the instruction takes from registers.
// While some warps unpack, the products of others are under way. The columns of a sum are added in their order, so its
// bits do not depend on the size of the tile or the number of rows.
#pragma once

#include "blocks.cuh"
#include "tensor.cuh"

namespace by_groups {

constexpr int depth = 32;    // columns of a step
constexpr int x_rows = 128;  // of activations, in a tile
constexpr int stages = 5;
constexpr int stage_bytes = depth * x_rows * 2;

template <class B>
struct Of {
  using T = __nv_bfloat16;
};
template <>
struct Of<F16> {
  using T = __half;
};

// A lane's share of the columns of a step in a row of weights: of each half of them, four neighbours.
template <class B>
struct Share {
  B unit;

  __device__ __forceinline__ void load(const Planes& w, size_t row_at, int step, int, int c) {
    const size_t at = row_at + step;
    unit.main.word[0] = reinterpret_cast<const uint32_t*>(w.main)[4 * at + c];
    unit.k.load(w, at);
  }
  __device__ __forceinline__ uint2 pairs(int half) const {
    const float4 v = unit.piece(4 * half);
    const float scale = unit.scale(half), min = unit.min(half);
    return {pack2<__nv_bfloat16>(scale * v.x - min, scale * v.y - min),
            pack2<__nv_bfloat16>(scale * v.z - min, scale * v.w - min)};
  }
};

template <>
struct Share<Q6_K> {
  Q6_K unit;

  __device__ __forceinline__ void load(const Planes& w, size_t row_at, int step, int, int c) {
    const size_t at = row_at + step;
    unit.main.word[0] = reinterpret_cast<const uint32_t*>(w.main)[4 * at + c];
    const uint2 bits = reinterpret_cast<const uint2*>(w.high)[at];
    unit.high[0] = bits.x >> 2 * c, unit.high[1] = bits.y >> 2 * c;
    const uint8_t* head = w.head + at / 8 * 18;
    const char2 sc = reinterpret_cast<const char2*>(head)[1 + at % 8];
    const float d = half_at(head, 0);
    unit.scaled[0] = d * float(sc.x), unit.scaled[1] = d * float(sc.y);
  }
  __device__ __forceinline__ uint2 pairs(int half) const {
    const float4 v = unit.piece(4 * half);
    const float scale = unit.scale(half);
    return {pack2<__nv_bfloat16>(scale * v.x, scale * v.y), pack2<__nv_bfloat16>(scale * v.z, scale * v.w)};
  }
};

template <>
struct Share<Q8_0> {
  uint32_t word[2];
  float d;

  __device__ __forceinline__ void load(const Planes& w, size_t row_at, int step, int, int c) {
    const size_t at = row_at + 2 * size_t(step);
    word[0] = reinterpret_cast<const uint32_t*>(w.main)[4 * at + c];
    word[1] = reinterpret_cast<const uint32_t*>(w.main)[4 * at + 4 + c];
    d = half_at(w.head, at / 2);
  }
  __device__ __forceinline__ uint2 pairs(int half) const {
    const float4 v = centered(word[half] ^ 0x80808080, 128.0f);
    return {pack2<__nv_bfloat16>(d * v.x, d * v.y), pack2<__nv_bfloat16>(d * v.z, d * v.w)};
  }
};

struct Halves {
  uint2 word[2];

  __device__ __forceinline__ void load(const Planes& w, size_t row_at, int step, int n_units, int c) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int u = 4 * step + 2 * half + c / 2;
      word[half] = {};
      if (u < n_units) word[half] = reinterpret_cast<const uint2*>(w.main)[2 * (row_at + u) + c % 2];
    }
  }
  __device__ __forceinline__ uint2 pairs(int half) const { return word[half]; }
};
template <>
struct Share<BF16> : Halves {};
template <>
struct Share<F16> : Halves {};

__device__ __forceinline__ void init_barrier(uint64_t* barrier, int n_arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(n_arrivals) : "memory");
}
__device__ __forceinline__ void arrive(uint64_t* barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void arrive_expecting(uint64_t* barrier, int n_bytes) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }" ::"r"(
                   shared_address(barrier)),
               "r"(n_bytes)
               : "memory");
}
// Waits for the end of a phase of a barrier: phases alternate between 0 and 1.
__device__ __forceinline__ void wait_barrier(uint64_t* barrier, uint32_t phase) {
  uint32_t done = 0;
  while (!done) {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(phase)
        : "memory");
  }
}
__device__ __forceinline__ void copy_bulk(void* to, const void* from, int n_bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from), "r"(n_bytes), "r"(shared_address(barrier))
      : "memory");
}

// Where 16 columns of a tile's activations lie, for the instruction: without swizzling, eight rows of eight columns are
// 128 neighbouring bytes, the next eight rows follow, and the next eight columns are those of all rows further.
__device__ __forceinline__ uint64_t descriptor(const void* at) {
  const uint64_t next_columns = x_rows * 16, next_rows = 128;
  return uint64_t((shared_address(at) & 0x3ffff) >> 4) | next_columns >> 4 << 16 | next_rows >> 4 << 32;
}

#define SUMS_8(i)                                                                                                    \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define MULTIPLY(TYPE)                                                                                                 \
  asm volatile(                                                                                                        \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE                                                     \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "    \
      "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, " \
      "%45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "               \
      "{%64, %65, %66, %67}, %68, 1, 1, 1, 0;"                                                                         \
      : SUMS_8(0), SUMS_8(8), SUMS_8(16), SUMS_8(24), SUMS_8(32), SUMS_8(40), SUMS_8(48), SUMS_8(56)                   \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

// d += a b^T of 64 x 16 and 128 x 16, begun by four warps. a is as `mma` in `tensor.cuh` has it for the 16 rows of a warp,
// and d[4 i] to d[4 i + 3] for columns 8 i to 8 i + 7.
template <class T>
__device__ __forceinline__ void multiply(float (&d)[64], const uint32_t (&a)[4], uint64_t b);
template <>
__device__ __forceinline__ void multiply<__half>(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
  MULTIPLY("f16");
}
template <>
__device__ __forceinline__ void multiply<__nv_bfloat16>(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
  MULTIPLY("bf16");
}

// What is in registers was written before the products that follow. A compiler orders what it is told of alone, so sums and
// fragments are operands here: it computes nothing of them behind this.
__device__ __forceinline__ void fence_registers(float (&d)[64], uint32_t (&a)[2][4]) {
  asm volatile("wgmma.fence.sync.aligned;"
               : SUMS_8(0), SUMS_8(8), SUMS_8(16), SUMS_8(24), SUMS_8(32), SUMS_8(40), SUMS_8(48), SUMS_8(56),
                 "+r"(a[0][0]), "+r"(a[0][1]), "+r"(a[0][2]), "+r"(a[0][3]), "+r"(a[1][0]), "+r"(a[1][1]),
                 "+r"(a[1][2]), "+r"(a[1][3])
               :
               : "memory");
}
// Ends the group of products, and waits for it: no sum is read in front of this.
__device__ __forceinline__ void wait_for_products(float (&d)[64]) {
  asm volatile(
      "wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 0;"
      : SUMS_8(0), SUMS_8(8), SUMS_8(16), SUMS_8(24), SUMS_8(32), SUMS_8(40), SUMS_8(48), SUMS_8(56)
      :
      : "memory");
}

// A block has 64 rows of weights for each group of four warps, 128 rows of activations, and a warp more for copies.
//
// x: by eights of columns, `x_rows_of_all` rows of them each, as `group_rows.cu` makes them, so that a lane's four columns
// are those of its fragments. scales: of rows of x, or null. bias: [n_rows] or null, residual: [n_batch, n_rows] or null,
// out: [n_batch, n_rows].
template <class B, int groups>
__device__ __forceinline__ void matmul(
    const Planes& w, const uint4* x, int x_rows_of_all, const float* scales, const float* bias, const float* residual,
    int residual_stride, float* out, int out_stride, int n_rows, int n_cols, int n_batch) {
  using T = typename Of<B>::T;
  __shared__ __align__(128) uint4 tile[stages][stage_bytes / 16];
  __shared__ uint64_t full[stages], empty[stages];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int first_x = blockIdx.x * x_rows, n_steps = (n_cols + depth - 1) / depth;
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; i++) init_barrier(full + i, 1), init_barrier(empty + i, 4 * groups);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  if (warp == 4 * groups) {
    if (lane != 0) return;
    for (int step = 0; step < n_steps; step++) {
      const int stage = step % stages, round = step / stages;
      if (round > 0) wait_barrier(empty + stage, (round - 1) % 2);
      arrive_expecting(full + stage, stage_bytes);
      for (int i = 0; i < depth / 8; i++) {
        copy_bulk(&tile[stage][i * x_rows], x + size_t(step * (depth / 8) + i) * x_rows_of_all + first_x, x_rows * 16,
                  full + stage);
      }
    }
    return;
  }

  const int first_row = blockIdx.y * (64 * groups) + warp * 16 + g;
  const int n_units = (n_cols + B::len - 1) / B::len;
  // Behind the last row, the last one is multiplied again and not stored.
  const size_t row_at[2] = {size_t(min(first_row, n_rows - 1)) * n_units,
                            size_t(min(first_row + 8, n_rows - 1)) * n_units};
  Share<B> share[2];
  share[0].load(w, row_at[0], 0, n_units, c), share[1].load(w, row_at[1], 0, n_units, c);
  float d[64];
#pragma unroll
  for (int i = 0; i < 64; i++) d[i] = 0.0f;
  for (int step = 0, stage = 0, phase = 0; step < n_steps; step++) {
    uint32_t a[2][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const uint2 upper = share[0].pairs(half), lower = share[1].pairs(half);
      a[half][0] = upper.x, a[half][1] = lower.x, a[half][2] = upper.y, a[half][3] = lower.y;
    }
    const int next = min(step + 1, n_steps - 1);
    share[0].load(w, row_at[0], next, n_units, c), share[1].load(w, row_at[1], next, n_units, c);
    wait_barrier(full + stage, phase);
    fence_registers(d, a);
    multiply<T>(d, a[0], descriptor(&tile[stage][0]));
    multiply<T>(d, a[1], descriptor(&tile[stage][2 * x_rows]));
    wait_for_products(d);
    if (lane == 0) arrive(empty + stage);
    if (++stage == stages) stage = 0, phase ^= 1;
  }

#pragma unroll
  for (int i = 0; i < 64; i++) {
    const int row = first_row + i / 2 % 2 * 8, col = first_x + i / 4 * 8 + 2 * c + i % 2;
    if (row >= n_rows || col >= n_batch) continue;
    float sum = d[i];
    if (scales) sum *= scales[col];
    if (bias) sum += bias[row];
    if (residual) sum += residual[size_t(col) * residual_stride + row];
    out[size_t(col) * out_stride + row] = sum;
  }
}

}  // namespace by_groups

#define MATMUL_WGMMA(TYPE, NAME, GROUPS)                                                                              \
  extern "C" __global__ void __launch_bounds__(128 * GROUPS + 32, 1) matmul_wgmma_##NAME##_##GROUPS(                   \
      const uint4* main, const uint8_t* high, const uint8_t* head, const uint4* x, int x_rows, const float* scales,   \
      const float* bias, const float* residual, int residual_stride, float* out, int out_stride, int n_rows,          \
      int n_cols, int n_batch) {                                                                                      \
    by_groups::matmul<TYPE, GROUPS>({main, high, head}, x, x_rows, scales, bias, residual, residual_stride, out,       \
                                    out_stride, n_rows, n_cols, n_batch);                                             \
  }
