// Products of packed matrices with many rows of activations by the tensor cores of compute capability 9.0, in half
// precision: F16 weights with F16 activations, all others with both in BF16. Sums are F32.
//
// Activations lie in shared memory, where a warp brings them by bulk copies some stages ahead. Weights never do: a warp of
// four that multiply together has 16 rows, and unpacks them to the fragments that the instruction takes from registers,
// while the products in front of it are under way. The columns of a sum are added in one order, so its bits do not depend on
// the size of the tile or the number of rows.
//
// Columns are taken in spans of 128. Of a row of weights, each of the four lanes that share it has 32 neighbours of a span,
// which are what it loads at once, and a step of 16 columns takes four of each. `group_rows.cu` brings activations in the
// same order, and as the instruction has them in shared memory: a stage is 64 columns, of which a row has 128 bytes, swizzled.
#pragma once

#include "activations.cuh"
#include "blocks.cuh"
#include "halves.cuh"
#include "tiles.cuh"

namespace by_groups {

constexpr int span = 128;            // columns
constexpr int span_steps = span / 16;  // of the instruction
constexpr int stage_steps = 4;
constexpr int row_bytes = 32 * stage_steps;
constexpr int groups = 2;             // of four warps, each with 64 rows of weights
constexpr int tile_bytes = 20 * 8192;  // what a launch gives dynamic shared memory for, beside the barriers

template <class B>
struct Of {
  using T = __nv_bfloat16;
};
template <>
struct Of<F16> {
  using T = __half;
};

// Two pairs of neighbours of a piece.
template <class B>
__device__ __forceinline__ uint2 pairs_of(const B& unit, int piece) {
  const float4 v = weights(unit, piece);
  return {pack2<__nv_bfloat16>(v.x, v.y), pack2<__nv_bfloat16>(v.z, v.w)};
}

// A lane's share of a span of a row: 32 columns, of which a step takes four. Here they are a unit.
template <class B>
struct Share {
  B unit;

  // What is behind the row's last unit is loaded from in front of it; activations are zero there.
  __device__ __forceinline__ void load(const Planes& w, size_t row_at, int at, int n_units, int c) {
    unit.load(w, row_at + min(4 * at + c, n_units - 1));
  }
  __device__ __forceinline__ uint2 pairs(int step) const { return pairs_of(unit, step); }
};

// Here two units.
template <>
struct Share<Q8_0> {
  Q8_0 unit[2];

  __device__ __forceinline__ void load(const Planes& w, size_t row_at, int at, int n_units, int c) {
#pragma unroll
    for (int i = 0; i < 2; i++) unit[i].load(w, row_at + min(8 * at + 2 * c + i, n_units - 2 + i));
  }
  __device__ __forceinline__ uint2 pairs(int step) const { return pairs_of(unit[step / 4], step % 4); }
};

// And here four, which are multiplied as they are. A product reads its registers for as long as it is under way, and the
// assembler would let loads of the next span have them: so a step has registers of its own, by an operation that it cannot
// leave out.
struct Halves {
  Main unit[4];
  uint32_t none;  // zero

  __device__ __forceinline__ void load(const Planes& w, size_t row_at, int at, int n_units, int c) {
    none = uint32_t(n_units) >> 31;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int u = 16 * at + 4 * c + i;
      unit[i] = {};
      if (u < n_units) unit[i].load(w, row_at + u);
    }
  }
  __device__ __forceinline__ uint2 pairs(int step) const {
    return {unit[step / 2].word[step % 2 * 2] ^ none, unit[step / 2].word[step % 2 * 2 + 1] ^ none};
  }
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

// Where 16 columns of a stage lie, for the instruction: eight rows of 128 bytes are neighbours, whose pieces of 16 bytes are
// swizzled, and the next eight follow. The first of them lies at a multiple of its size.
__device__ __forceinline__ uint64_t descriptor(const void* stage, int step) {
  const uint64_t next_rows = 8 * row_bytes, swizzle_128 = 1;
  return uint64_t((shared_address(stage) + 32 * step & 0x3ffff) >> 4) | next_rows >> 4 << 32 | swizzle_128 << 62;
}

#define SUMS_8(i)                                                                                                    \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define SUMS_64 SUMS_8(0), SUMS_8(8), SUMS_8(16), SUMS_8(24), SUMS_8(32), SUMS_8(40), SUMS_8(48), SUMS_8(56)
#define SUMS_128                                                                                             \
  SUMS_64, SUMS_8(64), SUMS_8(72), SUMS_8(80), SUMS_8(88), SUMS_8(96), SUMS_8(104), SUMS_8(112), SUMS_8(120)
#define MULTIPLY_128(TYPE) \
  asm volatile( \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
      "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, " \
      "%59, %60, %61, %62, %63}, " \
      "{%64, %65, %66, %67}, %68, 1, 1, 1, 0;" \
      : SUMS_64 \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define MULTIPLY_256(TYPE) \
  asm volatile( \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
      "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, " \
      "%59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, " \
      "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, " \
      "%97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, " \
      "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, " \
      "{%128, %129, %130, %131}, %132, 1, 1, 1, 0;" \
      : SUMS_128 \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

// d += a b^T of 64 x 16 and X x 16, begun by four warps. a is as `mma` in `tensor.cuh` has it for the 16 rows of a warp, and
// d[4 i] to d[4 i + 3] for columns 8 i to 8 i + 7.
template <class T>
__device__ __forceinline__ void multiply(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (__is_same(T, __half)) {
    MULTIPLY_128("f16");
  } else {
    MULTIPLY_128("bf16");
  }
}
template <class T>
__device__ __forceinline__ void multiply(float (&d)[128], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (__is_same(T, __half)) {
    MULTIPLY_256("f16");
  } else {
    MULTIPLY_256("bf16");
  }
}

// What is in registers was written before the products that follow. A compiler orders what it is told of alone, so what was
// written is an operand here: it computes nothing of that behind this.
__device__ __forceinline__ void fence_sums(float (&d)[64]) {
  asm volatile("wgmma.fence.sync.aligned;" : SUMS_64 : : "memory");
}
__device__ __forceinline__ void fence_sums(float (&d)[128]) {
  asm volatile("wgmma.fence.sync.aligned;" : SUMS_128 : : "memory");
}
#define FRAGMENTS(a) \
  "+r"(a[0][0]), "+r"(a[0][1]), "+r"(a[0][2]), "+r"(a[0][3]), "+r"(a[1][0]), "+r"(a[1][1]), "+r"(a[1][2]), "+r"(a[1][3])
__device__ __forceinline__ void fence_fragments(uint32_t (&a)[2][4]) {
  asm volatile("wgmma.fence.sync.aligned;" : FRAGMENTS(a) : : "memory");
}
__device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits for all groups of products but the last one: then nothing reads the fragments `a` of the one in front of it.
__device__ __forceinline__ void wait_for_last_but_one(uint32_t (&a)[2][4]) {
  asm volatile("wgmma.wait_group.sync.aligned 1;" : FRAGMENTS(a) : : "memory");
}
// Waits for all of them: no sum is read in front of this.
__device__ __forceinline__ void wait_for_products(float (&d)[64]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" : SUMS_64 : : "memory");
}
__device__ __forceinline__ void wait_for_products(float (&d)[128]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" : SUMS_128 : : "memory");
}

// A block has 64 rows of weights for each group of four warps, `row_of(i)`, X rows of activations, and four warps more, one of
// which copies. The others call `end` with their sums.
//
// x: by stages, `x_rows_of_all` rows of them each, as `group_rows.cu` makes them.
template <class B, int X, class R, class End>
__device__ __forceinline__ void multiply_rows(
    const Planes& w, const uint4* x, int x_rows_of_all, int n_cols, const R& row_of, const End& end) {
  using T = typename Of<B>::T;
  constexpr int stage_bytes = X * row_bytes, stage_len = stage_bytes / 16, stages = tile_bytes / stage_bytes;
  extern __shared__ __align__(8 * row_bytes) uint4 tile[];  // [stages, stage_len], then the barriers
  uint64_t *full = reinterpret_cast<uint64_t*>(tile + stages * stage_len), *empty = full + stages;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int first_x = blockIdx.x * X, n_spans = (n_cols + span - 1) / span;
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; i++) init_barrier(full + i, 1), init_barrier(empty + i, 4 * groups);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  // The warps of the last group have little to keep: others get their registers.
  if (warp >= 4 * groups) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (warp > 4 * groups || lane != 0) return;
    wait_for_launch();
    for (int i = 0; i < n_spans * span_steps / stage_steps; i++) {
      const int stage = i % stages, round = i / stages;
      if (round > 0) wait_barrier(empty + stage, (round - 1) % 2);
      arrive_expecting(full + stage, stage_bytes);
      const uint4* from = x + (size_t(i) * x_rows_of_all + first_x) * (row_bytes / 16);
      copy_bulk(tile + stage * stage_len, from, stage_bytes, full + stage);
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");

  const int n_units = (n_cols + B::len - 1) / B::len;
  const size_t row_at[2] = {size_t(row_of(warp * 16 + g)) * n_units, size_t(row_of(warp * 16 + g + 8)) * n_units};
  Share<B> share[2];
  share[0].load(w, row_at[0], 0, n_units, c), share[1].load(w, row_at[1], 0, n_units, c);
  wait_for_launch();
  float d[X / 2];
#pragma unroll
  for (int i = 0; i < X / 2; i++) d[i] = 0.0f;
  fence_sums(d);
  // Products are issued in pairs: twice the independent work to unpack, and half the waits.
  uint32_t a[2][2][4] = {};
  int stage = 0, phase = 0, before = 0;
  for (int at = 0; at < n_spans; at++) {
    Share<B> next[2];
    const int ahead = min(at + 1, n_spans - 1);
    next[0].load(w, row_at[0], ahead, n_units, c), next[1].load(w, row_at[1], ahead, n_units, c);
#pragma unroll
    for (int step = 0; step < span_steps; step += 2) {
      uint32_t(&own)[2][4] = a[step / 2 % 2];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const uint2 upper = share[0].pairs(step + i), lower = share[1].pairs(step + i);
        own[i][0] = upper.x, own[i][1] = lower.x, own[i][2] = upper.y, own[i][3] = lower.y;
      }
      const int in_stage = step % stage_steps;
      if (in_stage == 0) wait_barrier(full + stage, phase);
      fence_fragments(own);
#pragma unroll
      for (int i = 0; i < 2; i++) multiply<T>(d, own[i], descriptor(tile + stage * stage_len, in_stage + i));
      end_products();
      wait_for_last_but_one(a[(step / 2 + 1) % 2]);
      // With the products in front of these, the stage in front of this one is done.
      if (in_stage == 0) {
        if (lane == 0 && at + step > 0) arrive(empty + before);
        before = stage;
      }
      if (in_stage == stage_steps - 2 && ++stage == stages) stage = 0, phase ^= 1;
    }
    share[0] = next[0], share[1] = next[1];
  }
  wait_for_products(d);
  end(d);
}

// Stores the sums of a warp, a row of activations after the other.
template <int X>
__device__ __forceinline__ void store_sums(const float (&d)[X / 2], const float* scales, int tile_row, const Ends& ends) {
  constexpr int at_once = 8;
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int first_x = blockIdx.x * X, first_row = tile_row + threadIdx.x / 32 * 16 + g;
#pragma unroll
  for (int first = 0; first < X / 4; first += at_once) {
    const auto col_of = [&](int i) { return first_x + (first + i) / 2 * 8 + 2 * c + i % 2; };
    float sum[at_once][2];
#pragma unroll
    for (int i = 0; i < at_once * 2; i++) sum[i / 2][i % 2] = d[(first + i / 2) / 2 * 4 + i % 2 * 2 + i / 2 % 2];
    if (scales) {
#pragma unroll
      for (int i = 0; i < at_once; i++) {
        const float scale = col_of(i) < ends.n_batch ? scales[col_of(i)] : 0.0f;
        sum[i][0] *= scale, sum[i][1] *= scale;
      }
    }
    ends.store(sum, col_of, first_row, [](int i) { return 8 * i; });
  }
}

// scales: of rows of x, or null.
template <class B, int X>
__device__ __forceinline__ void matmul(
    const Planes& w, const uint4* x, int x_rows_of_all, const float* scales, int n_cols, const Ends& ends) {
  const int tile_row = blockIdx.y * (64 * groups);
  // Behind the last row, the last one is multiplied again and not stored.
  const auto row_of = [&](int i) { return min(tile_row + i, ends.n_rows - 1); };
  multiply_rows<B, X>(w, x, x_rows_of_all, n_cols, row_of, [&](const float(&d)[X / 2]) {
    store_sums<X>(d, scales, tile_row, ends);
  });
}

// The rows of a block of gated products: of the span of 128 results that two blocks share, number `i` is the one that stage
// `blockIdx.y % 2` of the span has, as `group_piece` has it, in the order of the lanes that multiply with it.
__device__ __forceinline__ int gated_row(int i) { return blockIdx.y / 2 * 128 + i / 16 * 32 + blockIdx.y % 2 * 16 + i % 16; }

// activation(gate * x + its bias) * (up * x + its bias) in BF16, as the product behind takes it: to has room for `to_rows` rows.
// The first group has 64 rows of the gate, and the second one the same of the other half.
template <class B, int X>
__device__ __forceinline__ void gated(
    const Planes& w, const uint4* x, int x_rows_of_all, const Gate& gate, uint4* to, int to_rows, int n_cols, int n_batch) {
  static_assert(groups == 2, "a gate and what it lets through");
  constexpr int threads = 128 * groups, pitch = 64 + 4;  // lanes that write at once are in different banks
  static_assert(groups * X * pitch * sizeof(float) <= tile_bytes, "sums of both");
  const auto row_of = [&](int i) {
    const int row = min(gated_row(i % 64), gate.n_rows - 1);
    return i < 64 ? gate.gate_row(row) : gate.up_row(row);
  };
  multiply_rows<B, X>(w, x, x_rows_of_all, n_cols, row_of, [&](const float(&d)[X / 2]) {
    extern __shared__ __align__(8 * row_bytes) uint4 tile[];
    float* const sums = reinterpret_cast<float*>(tile);  // [groups, X, pitch]
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    // Both groups are done with the stages.
    asm volatile("bar.sync 1, %0;" ::"n"(threads) : "memory");
    float* const own = sums + warp / 4 * (X * pitch) + warp % 4 * 16 + g;
#pragma unroll
    for (int i = 0; i < X / 2; i++) own[(i / 4 * 8 + 2 * c + i % 2) * pitch + i / 2 % 2 * 8] = d[i];
    asm volatile("bar.sync 1, %0;" ::"n"(threads) : "memory");
    // A warp has the 128 bytes that a row has of a stage.
#pragma unroll 1
    for (int token = warp; token < X; token += threads / 32) {
      const int at = blockIdx.x * X + token, piece = lane / 4;
      if (at >= n_batch) break;
      const int i = 16 * c + 2 * piece, row = gated_row(i);
      const float2 of_gate = *reinterpret_cast<const float2*>(sums + token * pitch + i);
      const float2 of_up = *reinterpret_cast<const float2*>(sums + (X + token) * pitch + i);
      // Zeros are behind the last result, up to the end of its span.
      const float a = row < gate.n_rows ? gate.result(row, of_gate.x, of_up.x) : 0.0f;
      const float b = row + 1 < gate.n_rows ? gate.result(row + 1, of_gate.y, of_up.y) : 0.0f;
      const int step = blockIdx.y * 4 + piece / 2;
      reinterpret_cast<uint32_t*>(group_piece(to, to_rows, at, step, piece % 2))[c] = pack2<__nv_bfloat16>(a, b);
    }
  });
}

}  // namespace by_groups

#define MATMUL_WGMMA(TYPE, NAME, X)                                                                                   \
  extern "C" __global__ void __launch_bounds__(128 * by_groups::groups + 128, 1) matmul_wgmma_##NAME##_##X(             \
      const uint4* main, const uint8_t* high, const uint8_t* head, const uint4* x, int x_rows, const float* scales,   \
      const float* bias, const float* residual, int residual_stride, float* out, int out_stride, int n_rows,          \
      int n_cols, int n_batch) {                                                                                      \
    by_groups::matmul<TYPE, X>({main, high, head}, x, x_rows, scales, n_cols,                                          \
                               {bias, residual, residual_stride, out, out_stride, n_rows, n_batch});                  \
  }

#define GATED_WGMMA(TYPE, NAME, X)                                                                                    \
  extern "C" __global__ void __launch_bounds__(128 * by_groups::groups + 128, 1) gated_wgmma_##NAME##_##X(             \
      const uint4* main, const uint8_t* high, const uint8_t* head, const uint4* x, int x_rows, const float* bias,      \
      int up_first, int act, uint4* to, int to_rows, int n_rows, int n_cols, int n_batch) {                           \
    by_groups::gated<TYPE, X>({main, high, head}, x, x_rows, {bias, up_first != 0, act, nullptr, 0, n_rows}, to,       \
                              to_rows, n_cols, n_batch);                                                              \
  }
