// Products of fragments on tensor cores, and what feeds them: asynchronous copies to shared memory, fragments from
// there, and pairs of elements of 16 bits.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

// Two floats, rounded, in the halves of a word; `x` is the lower one.
template <class T>
__device__ __forceinline__ uint32_t pack2(float x, float y);
template <>
__device__ __forceinline__ uint32_t pack2<__half>(float x, float y) {
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(y), "f"(x));
  return word;
}
template <>
__device__ __forceinline__ uint32_t pack2<__nv_bfloat16>(float x, float y) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(y), "f"(x));
  return word;
}

template <class T>
__device__ __forceinline__ float2 unpack2(uint32_t word);
template <>
__device__ __forceinline__ float2 unpack2<__half>(uint32_t word) {
  return __half22float2(*reinterpret_cast<const __half2*>(&word));
}
template <>
__device__ __forceinline__ float2 unpack2<__nv_bfloat16>(uint32_t word) {
  return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
}

// Which half of a word is infinite or NaN: 0xffff in its place.
template <class T>
__device__ __forceinline__ uint32_t not_finite2(uint32_t word);
template <>
__device__ __forceinline__ uint32_t not_finite2<__half>(uint32_t word) {
  return ((word & 0x7c00u) == 0x7c00u ? 0xffffu : 0u) | ((word & 0x7c000000u) == 0x7c000000u ? 0xffff0000u : 0u);
}
template <>
__device__ __forceinline__ uint32_t not_finite2<__nv_bfloat16>(uint32_t word) {
  return ((word & 0x7f80u) == 0x7f80u ? 0xffffu : 0u) | ((word & 0x7f800000u) == 0x7f800000u ? 0xffff0000u : 0u);
}

// d += a b for a of 16 x 16 and b of 16 x 8. With g = lane / 4 and c = lane % 4: a[0] has row g and columns 2 c and
// 2 c + 1, a[1] row g + 8, a[2] columns 8 further, a[3] both; b[0] has rows 2 c and 2 c + 1 of column g, b[1] rows 8
// further; d[0] and d[1] have row g and columns 2 c and 2 c + 1, d[2] and d[3] row g + 8.
template <class T>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void mma<__half>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four matrices of 8 x 8 elements of 16 bits; lanes 8 i to 8 i + 7 have the addresses of the rows of matrix i.
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ uint32_t shared_address(const void* place) {
  return uint32_t(__cvta_generic_to_shared(place));
}

// 16 bytes to shared memory, or zeros, if they do not exist.
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, bool exists) {
  const int n_bytes = exists ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n_bytes) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

// 2^x within 2^-22, zero where that would be subnormal.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Both parts of two elements.
template <class T>
__device__ __forceinline__ void split_pair(float2 x, float factor, uint32_t& high, uint32_t& low) {
  const float a = x.x * factor, b = x.y * factor;
  high = pack2<T>(a, b);
  const float2 rounded = unpack2<T>(high);
  low = pack2<T>(a - rounded.x, b - rounded.y);
}

// The power of two that brings a number near 2^7. Halves have few exponents: with the largest element of a query
// there, both parts of all elements that matter beside it are normal numbers.
template <class T>
__device__ __forceinline__ int exponent_shift(float largest) {
  return 0;
}
template <>
__device__ __forceinline__ int exponent_shift<__half>(float largest) {
  const int exponent = int(__float_as_uint(largest) >> 23) - 127;
  return exponent < -100 || exponent > 100 ? 0 : 7 - exponent;
}
__device__ __forceinline__ float power_of_two(int exponent) { return __uint_as_float(uint32_t(127 + exponent) << 23); }

// Weights are kept as 2^weight_bias times what they are: halves then are normal down to 2^-28 of the largest.
constexpr float weight_bias = 14.0f;
