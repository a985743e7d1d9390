//! The scales of sixteen rows in NEON registers of four rows.

use std::arch::aarch64::*;
use std::arch::aarch64::{
    vdupq_n_f32 as set1_f, vld1q_f32 as load_f, vmulq_f32 as mul, vnegq_f32 as negative,
    vst1q_f32 as store_f,
};
use std::arch::asm;

use super::format::{E4M3_HALF_UNIT, E4M3_SHIFT, HALVES_BYTES};
use super::types::{SIX_LOW, SIXES_LOW};

super::scales::packed_scales!("neon,dotprod", 4, float32x4_t, int32x4_t, FormatNeon::integers_neon);

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn set1_16(word: i16) -> int32x4_t {
    vreinterpretq_s32_s16(vdupq_n_s16(word))
}

/// # Safety
/// The bytes can be read.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn load_int(at: *const int32x4_t) -> int32x4_t {
    // SAFETY: the caller's promise.
    unsafe { vld1q_s32(at.cast()) }
}

/// # Safety
/// The bytes can be written.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn store_int(at: *mut int32x4_t, v: int32x4_t) {
    // SAFETY: the caller's promise.
    unsafe { vst1q_s32(at.cast(), v) };
}

/// Loads the `i`-th list of f16 as floats.
///
/// # Safety
/// The scales have the list.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn halves(scales: *const u8, i: usize) -> Floats {
    let mut out = [vdupq_n_f32(0.0); 4];
    for (r, out) in out.iter_mut().enumerate() {
        // SAFETY: the caller's promise; the instruction has no other effect. It has its
        // name because the standard library's function for it takes an unstable type.
        unsafe {
            let halves = vld1_u16(scales.add(i * HALVES_BYTES + 8 * r).cast());
            asm!(
                "fcvtl {0:v}.4s, {1:v}.4h",
                out(vreg) *out,
                in(vreg) halves,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
    }
    out
}

/// Loads a list of exponents as half of their powers of two.
///
/// # Safety
/// The scales have the list.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn powers(scales: *const u8) -> Floats {
    // SAFETY: the caller's promise.
    let bytes = unsafe { load(scales) };
    let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
    let exponents = [
        vmovl_u16(vget_low_u16(low)),
        vmovl_high_u16(low),
        vmovl_u16(vget_low_u16(high)),
        vmovl_high_u16(high),
    ];
    let mut out = [vdupq_n_f32(0.0); 4];
    for (out, exponent) in out.iter_mut().zip(exponents) {
        let normal = vshlq_n_u32::<23>(vsubq_u32(exponent, vdupq_n_u32(1)));
        // The scales of exponents 0 and 1 are subnormal.
        let small = vshlq_u32(vdupq_n_u32(0x0020_0000), vreinterpretq_s32_u32(exponent));
        let is_small = vcltq_u32(exponent, vdupq_n_u32(2));
        *out = vreinterpretq_f32_u32(vbslq_u32(is_small, small, normal));
    }
    out
}

/// # Safety
/// Sixteen bytes can be read.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn load(at: *const u8) -> uint8x16_t {
    // SAFETY: the caller's promise.
    unsafe { vld1q_u8(at) }
}

/// Sixteen unsigned bytes as floats.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn floats(bytes: uint8x16_t) -> Floats {
    let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
    [
        vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))),
        vcvtq_f32_u32(vmovl_high_u16(low)),
        vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))),
        vcvtq_f32_u32(vmovl_high_u16(high)),
    ]
}

/// Converts sixteen nonnegative FP8 numbers (`E4M3`) to half of them.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn e4m3_halves(bytes: uint8x16_t) -> Floats {
    let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
    let bits = [
        vmovl_u16(vget_low_u16(low)),
        vmovl_high_u16(low),
        vmovl_u16(vget_low_u16(high)),
        vmovl_high_u16(high),
    ];
    bits.map(|bits| {
        let tiny = vreinterpretq_f32_u32(vshlq_n_u32::<{ E4M3_SHIFT as i32 }>(bits));
        vmulq_f32(tiny, vdupq_n_f32(E4M3_HALF_UNIT))
    })
}

/// Widens sixteen signed bytes to 16 bits, each twice.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn twice(bytes: uint8x16_t) -> [int32x4_t; 4] {
    let bytes = vreinterpretq_s8_u8(bytes);
    let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
    [
        vreinterpretq_s32_s16(vzip1q_s16(low, low)),
        vreinterpretq_s32_s16(vzip2q_s16(low, low)),
        vreinterpretq_s32_s16(vzip1q_s16(high, high)),
        vreinterpretq_s32_s16(vzip2q_s16(high, high)),
    ]
}

/// The two 6-bit numbers of a group.
///
/// # Safety
/// The pointer is to the numbers of a packed block.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn sixes(at: *const u8, group: usize) -> [uint8x16_t; 2] {
    // SAFETY: the caller's promise.
    let (low, high) =
        unsafe { (load(at.add(16 * group)), load(at.add(SIXES_LOW + 16 * (group / 2)))) };
    // The group's four high bits move to the low nibble of each byte.
    let high = vshlq_u8(high, vdupq_n_s8(if group % 2 == 1 { -4 } else { 0 }));
    let two = vdupq_n_u8(0x30);
    let a = vandq_u8(vshlq_n_u8::<4>(high), two);
    let b = vandq_u8(vshlq_n_u8::<2>(high), two);
    [vorrq_u8(low_nibbles(low), a), vorrq_u8(high_nibbles(low), b)]
}

/// The 6-bit number of a group: low nibbles of two groups share a byte, and high bits of four.
///
/// # Safety
/// The pointer is to the numbers of a packed block.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn six(at: *const u8, group: usize) -> uint8x16_t {
    // SAFETY: the caller's promise.
    let (low, high) =
        unsafe { (load(at.add(16 * (group / 2))), load(at.add(SIX_LOW + 16 * (group / 4)))) };
    let low = if group.is_multiple_of(2) { low_nibbles(low) } else { high_nibbles(low) };
    let high = vandq_u8(vshlq_u8(high, vdupq_n_s8(-2 * (group % 4) as i8)), vdupq_n_u8(3));
    vorrq_u8(low, vshlq_n_u8::<4>(high))
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn low_nibbles(bytes: uint8x16_t) -> uint8x16_t {
    vandq_u8(bytes, vdupq_n_u8(15))
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn high_nibbles(bytes: uint8x16_t) -> uint8x16_t {
    vshrq_n_u8::<4>(bytes)
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn minus_32(bytes: uint8x16_t) -> uint8x16_t {
    vsubq_u8(bytes, vdupq_n_u8(32))
}

/// `2 * byte + 1`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn odd(bytes: uint8x16_t) -> uint8x16_t {
    vaddq_u8(vaddq_u8(bytes, bytes), vdupq_n_u8(1))
}

/// Factor and minimum of nibbles of IQ1_S; see [`super::types::iq1_s_integers`].
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn iq1_s(nibbles: uint8x16_t) -> [uint8x16_t; 2] {
    let factor = odd(vandq_u8(nibbles, vdupq_n_u8(7)));
    let eight = vshlq_n_u8::<3>(factor);
    let negative = vcgtq_u8(nibbles, vdupq_n_u8(7));
    [factor, vbslq_u8(negative, vaddq_u8(eight, factor), vsubq_u8(eight, factor))]
}
