// Tile products on tensor cores: cp.async into shared memory, ldmatrix, mma.sync, two stages.
#include <cuda_bf16.h>
#include <stdint.h>

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void copy16(void* to, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)), "l"(from),
               "r"(inside ? 16 : 0));
}

__device__ __forceinline__ void ldmatrix4(unsigned* r, const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(p)));
}

// C = A B^T by one warp: A [16, k], B [8, k], C [16, 8]; k is a multiple of 16.
extern "C" __global__ void tile_bf16(const __nv_bfloat16* __restrict__ a, const __nv_bfloat16* __restrict__ b,
                                     float* __restrict__ c, int n_rows, int k) {
  __shared__ __align__(16) __nv_bfloat16 sa[2][16][24];
  __shared__ __align__(16) __nv_bfloat16 sb[2][8][24];
  int lane = threadIdx.x;
  auto load = [&](int stage, int at) {
    int row = lane / 2, col = lane % 2 * 8;
    bool inside = row < n_rows;
    copy16(&sa[stage][row][col], a + (inside ? row : 0) * k + at + col, inside);
    if (lane < 16) copy16(&sb[stage][row][col], b + row * k + at + col, true);
    asm volatile("cp.async.commit_group;\n" ::: "memory");
  };
  float sum[4] = {};
  load(0, 0);
  for (int at = 0, stage = 0; at < k; at += 16, stage ^= 1) {
    if (at + 16 < k) {
      load(stage ^ 1, at + 16);
      asm volatile("cp.async.wait_group 1;\n" ::: "memory");
    } else {
      asm volatile("cp.async.wait_all;\n" ::: "memory");
    }
    __syncthreads();
    unsigned fa[4], fb[2];
    ldmatrix4(fa, &sa[stage][lane % 16][lane / 16 * 8]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];\n"
                 : "=r"(fb[0]), "=r"(fb[1])
                 : "r"(shared_address(&sb[stage][lane % 8][lane / 8 % 2 * 8])));
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
    __syncthreads();
  }
  for (int i = 0; i < 4; i++) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sum[i];
}

// The same of 8-bit integers: k is a multiple of 32.
extern "C" __global__ void tile_s8(const int8_t* __restrict__ a, const int8_t* __restrict__ b,
                                   int* __restrict__ c, int k) {
  extern __shared__ __align__(16) int8_t staged[];
  int8_t(*sa)[48] = reinterpret_cast<int8_t(*)[48]>(staged);
  int8_t(*sb)[48] = reinterpret_cast<int8_t(*)[48]>(staged + 16 * 48);
  int lane = threadIdx.x;
  int sum[4] = {};
  for (int at = 0; at < k; at += 32) {
    int row = lane / 2, col = lane % 2 * 16;
    copy16(&sa[row][col], a + row * k + at + col, true);
    if (lane < 16) copy16(&sb[row][col], b + row * k + at + col, true);
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;\n" ::: "memory");
    __syncwarp();
    unsigned fa[4], fb[2];
    ldmatrix4(fa, &sa[lane % 16][lane / 16 * 16]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];\n"
                 : "=r"(fb[0]), "=r"(fb[1])
                 : "r"(shared_address(&sb[lane % 8][lane / 8 % 2 * 16])));
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
        : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
    __syncwarp();
  }
  for (int i = 0; i < 4; i++) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sum[i];
}
