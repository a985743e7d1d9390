//! The scales of sixteen rows in NEON registers of four.

use std::arch::aarch64::*;
use std::arch::asm;

use super::format::{Format, HALVES_BYTES};
use super::panel::GroupScales;
use super::types::{Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, SIXES_LOW};

type Floats = [float32x4_t; 4];

/// The scales of a block.
#[derive(Clone, Copy)]
pub(super) struct BlockScales {
    pub(super) scale: Floats,
    /// Zero where the format has no minimums.
    pub(super) min_scale: Floats,
}

impl BlockScales {
    /// The scales of a packed block.
    ///
    /// # Safety
    /// The processor has NEON, and the pointer is to the scales of a packed block.
    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    pub(super) unsafe fn unpack<F: Format>(scales: *const u8) -> Self {
        // SAFETY: the caller's promise.
        let scale = unsafe { halves(scales, 0) };
        let mut min_scale = [vdupq_n_f32(0.0); 4];
        if let Some(ratio) = F::MIN_PER_SCALE {
            for (min, &scale) in min_scale.iter_mut().zip(&scale) {
                *min = vmulq_n_f32(scale, ratio);
            }
        } else if F::MINS > 0 {
            // SAFETY: the caller's promise.
            min_scale = unsafe { halves(scales, 1) };
            if F::FACTORS > 0 {
                // Where minimums are integers they are subtracted.
                for min in &mut min_scale {
                    *min = vnegq_f32(*min);
                }
            }
        }
        Self { scale, min_scale }
    }

    /// The scales of the block of a panel's group.
    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    pub(super) fn load<F: Format>(from: &GroupScales) -> Self {
        let zero = [vdupq_n_f32(0.0); 4];
        let min_scale = if F::MINS > 0 { load_floats(&from.min_scale) } else { zero };
        Self { scale: load_floats(&from.scale), min_scale }
    }

    /// Puts the scales in a panel's group.
    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    pub(super) fn store<F: Format>(&self, to: &mut GroupScales) {
        store_floats(self.scale, &mut to.scale);
        if F::MINS > 0 {
            store_floats(self.min_scale, &mut to.min_scale);
        }
    }
}

/// The integers of 32 columns. What a format does not have is 1, or not used.
#[derive(Clone, Copy)]
pub(super) struct Integers {
    /// Each factor twice.
    pub(super) factors: [[int32x4_t; 4]; 2],
    pub(super) mins: [Floats; 2],
}

impl Integers {
    /// No integers.
    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    fn none() -> Self {
        let (factor, min) = (vreinterpretq_s32_s16(vdupq_n_s16(1)), vdupq_n_f32(1.0));
        Self { factors: [[factor; 4]; 2], mins: [[min; 4]; 2] }
    }

    /// The integers of a panel's group.
    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    pub(super) fn load<F: Format>(from: &GroupScales) -> Self {
        let mut to = Self::none();
        if F::FACTORS == 0 {
            return to;
        }
        for half in 0..F::FACTORS {
            for (r, factor) in to.factors[half].iter_mut().enumerate() {
                // SAFETY: the load reads four rows of an array of sixteen.
                *factor = unsafe { vld1q_s32(from.factors[half].as_ptr().add(4 * r).cast()) };
            }
        }
        if F::FACTORS == 1 {
            to.factors[1] = to.factors[0];
        }
        for half in 0..F::MINS {
            to.mins[half] = load_floats(&from.mins[half]);
        }
        to
    }

    /// Puts the integers in a panel's group.
    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    pub(super) fn store<F: Format>(&self, to: &mut GroupScales) {
        if F::FACTORS == 0 {
            return;
        }
        for half in 0..F::FACTORS {
            for (r, &factor) in self.factors[half].iter().enumerate() {
                // SAFETY: the store writes four rows of an array of sixteen.
                unsafe { vst1q_s32(to.factors[half].as_mut_ptr().add(4 * r).cast(), factor) };
            }
        }
        for half in 0..F::MINS {
            store_floats(self.mins[half], &mut to.mins[half]);
        }
    }
}

/// A format whose integers are unpacked in registers.
pub(super) trait FormatNeon: Format {
    /// The twin of [`Format::integers`], from the scales of a packed block.
    ///
    /// # Safety
    /// The processor has NEON, and the pointer is to the scales of a packed block.
    unsafe fn integers_neon(scales: *const u8, group: usize) -> Integers;
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn load_floats(from: &[f32; 16]) -> Floats {
    let at = from.as_ptr();
    // SAFETY: the loads read the sixteen floats of the array.
    unsafe { [vld1q_f32(at), vld1q_f32(at.add(4)), vld1q_f32(at.add(8)), vld1q_f32(at.add(12))] }
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn store_floats(v: Floats, to: &mut [f32; 16]) {
    for (r, v) in v.into_iter().enumerate() {
        // SAFETY: the store writes four of the sixteen floats of the array.
        unsafe { vst1q_f32(to.as_mut_ptr().add(4 * r), v) };
    }
}

/// The `i`-th list of f16 as floats.
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

/// Sixteen signed bytes as words, each twice.
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

/// The two numbers of 6 bits of a group.
///
/// # Safety
/// The pointer is to the numbers of a packed block.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn sixes(at: *const u8, group: usize) -> [uint8x16_t; 2] {
    // SAFETY: the caller's promise.
    let (low, high) =
        unsafe { (load(at.add(16 * group)), load(at.add(SIXES_LOW + 16 * (group / 2)))) };
    // The group's four high bits to the low nibble of each byte.
    let high = vshlq_u8(high, vdupq_n_s8(if group % 2 == 1 { -4 } else { 0 }));
    let (nibble, two) = (vdupq_n_u8(15), vdupq_n_u8(0x30));
    let a = vandq_u8(vshlq_n_u8::<4>(high), two);
    let b = vandq_u8(vshlq_n_u8::<2>(high), two);
    [vorrq_u8(vandq_u8(low, nibble), a), vorrq_u8(vshrq_n_u8::<4>(low), b)]
}

/// An implementation for some types, with the scales and the group as they come.
macro_rules! unpack {
    ($($name:ty),+: |$scales:pat_param, $group:pat_param| $body:expr) => {$(
        impl FormatNeon for $name {
            #[inline]
            #[target_feature(enable = "neon,dotprod")]
            unsafe fn integers_neon($scales: *const u8, $group: usize) -> Integers {
                $body
            }
        }
    )+};
}

unpack!(Q4_0, Q4_1, Q5_0, Q5_1, Q8_0: |_, _| Integers::none());
unpack!(Q4K, Q5K: |scales, group| {
    // SAFETY: the caller's promise.
    let [factor, min] = unsafe { sixes(scales.add(Self::INTEGERS_AT), group) };
    Integers { factors: [twice(factor); 2], mins: [floats(min); 2] }
});
unpack!(Q2K: |scales, group| {
    let mut out = Integers::none();
    for half in 0..2 {
        // SAFETY: the caller's promise; a byte for each half of a group and row.
        let bytes = unsafe { load(scales.add(Self::INTEGERS_AT + 16 * (2 * group + half))) };
        out.factors[half] = twice(vandq_u8(bytes, vdupq_n_u8(15)));
        out.mins[half] = floats(vshrq_n_u8::<4>(bytes));
    }
    out
});
unpack!(Q3K: |scales, group| {
    // SAFETY: the caller's promise.
    let factors = unsafe { sixes(scales.add(Self::INTEGERS_AT), group) };
    let mut out = Integers::none();
    for (out, factors) in out.factors.iter_mut().zip(factors) {
        *out = twice(vsubq_u8(factors, vdupq_n_u8(32)));
    }
    out
});
unpack!(Q6K: |scales, group| {
    let mut out = Integers::none();
    for (half, out) in out.factors.iter_mut().enumerate() {
        // SAFETY: the caller's promise; a byte for each half of a group and row.
        *out = twice(unsafe { load(scales.add(Self::INTEGERS_AT + 16 * (2 * group + half))) });
    }
    out
});
