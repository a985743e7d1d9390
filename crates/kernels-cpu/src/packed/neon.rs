//! The kernels in NEON: 8-bit dot products in 128-bit registers, four per group.

use std::arch::aarch64::{
    float32x4_t, int32x4_t, vandq_s32 as and, vcvtq_f32_s32 as to_float, vdupq_n_f32 as set1_f,
    vdupq_n_s8, vdupq_n_s16, vdupq_n_s32 as set1_32, veorq_s32 as xor, vfmaq_f32,
    vld1q_f32 as load_f, vld1q_s8, vld1q_s32, vmulq_f32 as mul, vorrq_s32 as or, vqtbl1q_s8,
    vreinterpretq_s32_s8, vreinterpretq_s32_u16, vreinterpretq_u8_s32, vreinterpretq_u16_s32,
    vshlq_u16, vshrq_n_s32 as srai_32, vst1q_f32 as store_f, vst1q_s32,
};
use std::arch::asm;

use super::neon_scales::{BlockScales, FormatNeon, Integers};

const SIGNED: bool = true;

super::dot::dot_kernels!("neon,dotprod", 4, float32x4_t, int32x4_t, FormatNeon::integers_neon);

/// Adds the products of the bytes in each lane. Inline assembly, because older compilers lack the
/// intrinsic.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot(sum: int32x4_t, w: int32x4_t, x: int32x4_t) -> int32x4_t {
    let mut sum = sum;
    // SAFETY: the instruction has no other effect, and the feature is there.
    unsafe {
        asm!(
            "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sum,
            in(vreg) w,
            in(vreg) x,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// `a * b + c`, rounded once.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn fmadd(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
    vfmaq_f32(c, a, b)
}

/// # Safety
/// The bytes can be read.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn load(at: *const int32x4_t) -> int32x4_t {
    // SAFETY: the caller's promise.
    unsafe { vld1q_s32(at.cast()) }
}

/// # Safety
/// The bytes can be written.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn store(at: *mut int32x4_t, v: int32x4_t) {
    // SAFETY: the caller's promise.
    unsafe { vst1q_s32(at.cast(), v) };
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn zero() -> int32x4_t {
    set1_32(0)
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn zero_f() -> float32x4_t {
    set1_f(0.0)
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn set1_8(byte: i8) -> int32x4_t {
    vreinterpretq_s32_s8(vdupq_n_s8(byte))
}

/// The codebook's values at indices of one byte each.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn look_up(codebook: &[i8; 16], levels: int32x4_t) -> int32x4_t {
    // SAFETY: the load reads the array.
    let codebook = unsafe { vld1q_s8(codebook.as_ptr()) };
    vreinterpretq_s32_s8(vqtbl1q_s8(codebook, vreinterpretq_u8_s32(levels)))
}

/// Shifts each 16 bits left.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn up_16(v: int32x4_t, bits: usize) -> int32x4_t {
    vreinterpretq_s32_u16(vshlq_u16(vreinterpretq_u16_s32(v), vdupq_n_s16(bits as i16)))
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn down_16(v: int32x4_t, bits: usize) -> int32x4_t {
    vreinterpretq_s32_u16(vshlq_u16(vreinterpretq_u16_s32(v), vdupq_n_s16(-(bits as i16))))
}

/// Prefetches a cache line to L1. The address need not be valid.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn prefetch(at: *const u8) {
    // SAFETY: a prefetch is a hint and never faults.
    unsafe { asm!("prfm pldl1keep, [{0}]", in(reg) at, options(nostack, preserves_flags)) };
}

/// Prefetches a cache line to L2. The address need not be valid.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn prefetch_far(at: *const u8) {
    // SAFETY: as above.
    unsafe { asm!("prfm pldl2keep, [{0}]", in(reg) at, options(nostack, preserves_flags)) };
}
