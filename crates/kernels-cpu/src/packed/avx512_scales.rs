//! The scales of sixteen rows in AVX-512 registers, each in an array of one, as the kernels
//! of narrower registers have arrays of two.

use std::arch::x86_64::*;

use super::avx2_scales::{load, sixes};
use super::format::{Format, HALVES_BYTES};
use super::panel::GroupScales;
use super::types::{Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};

/// The scales of a block.
#[derive(Clone, Copy)]
pub(super) struct BlockScales {
    pub(super) scale: [__m512; 1],
    /// Zero where the format has no minimums.
    pub(super) min_scale: [__m512; 1],
}

impl BlockScales {
    /// The scales of a packed block.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW, DQ and VL, and the pointer is to the scales of a
    /// packed block.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub(super) unsafe fn unpack<F: Format>(scales: *const u8) -> Self {
        // SAFETY: the caller's promise.
        let scale = unsafe { halves(scales, 0) };
        let mut min_scale = _mm512_setzero_ps();
        if let Some(ratio) = F::MIN_PER_SCALE {
            min_scale = _mm512_mul_ps(_mm512_set1_ps(ratio), scale);
        } else if F::MINS > 0 {
            // SAFETY: the caller's promise.
            min_scale = unsafe { halves(scales, 1) };
            if F::FACTORS > 0 {
                // Where minimums are integers they are subtracted.
                min_scale = _mm512_xor_ps(min_scale, _mm512_set1_ps(-0.0));
            }
        }
        Self { scale: [scale], min_scale: [min_scale] }
    }

    /// The scales of the block of a panel's group.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub(super) fn load<F: Format>(from: &GroupScales) -> Self {
        let zero = _mm512_setzero_ps();
        let min_scale = if F::MINS > 0 { load_floats(&from.min_scale) } else { zero };
        Self { scale: [load_floats(&from.scale)], min_scale: [min_scale] }
    }

    /// Puts the scales in a panel's group.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub(super) fn store<F: Format>(&self, to: &mut GroupScales) {
        store_floats(self.scale[0], &mut to.scale);
        if F::MINS > 0 {
            store_floats(self.min_scale[0], &mut to.min_scale);
        }
    }
}

/// The integers of 32 columns. What a format does not have is 1, or not used.
#[derive(Clone, Copy)]
pub(super) struct Integers {
    /// Each factor twice.
    pub(super) factors: [[__m512i; 1]; 2],
    pub(super) mins: [[__m512; 1]; 2],
}

impl Integers {
    /// No integers.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    fn none() -> Self {
        Self { factors: [[_mm512_set1_epi16(1)]; 2], mins: [[_mm512_set1_ps(1.0)]; 2] }
    }

    /// The integers of a panel's group.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub(super) fn load<F: Format>(from: &GroupScales) -> Self {
        let mut to = Self::none();
        if F::FACTORS == 0 {
            return to;
        }
        for half in 0..F::FACTORS {
            // SAFETY: the load reads an array of sixteen, on a cache line.
            to.factors[half] = [unsafe { _mm512_load_si512(from.factors[half].as_ptr().cast()) }];
        }
        if F::FACTORS == 1 {
            to.factors[1] = to.factors[0];
        }
        for half in 0..F::MINS {
            to.mins[half] = [load_floats(&from.mins[half])];
        }
        to
    }

    /// Puts the integers in a panel's group.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub(super) fn store<F: Format>(&self, to: &mut GroupScales) {
        if F::FACTORS == 0 {
            return;
        }
        for half in 0..F::FACTORS {
            let at = to.factors[half].as_mut_ptr();
            // SAFETY: the store writes an array of sixteen, on a cache line.
            unsafe { _mm512_store_si512(at.cast(), self.factors[half][0]) };
        }
        for half in 0..F::MINS {
            store_floats(self.mins[half][0], &mut to.mins[half]);
        }
    }
}

/// A format whose integers are unpacked in registers.
pub(super) trait FormatAvx512: Format {
    /// The twin of [`Format::integers`], from the scales of a packed block.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW, DQ and VL, and the pointer is to the scales of a
    /// packed block.
    unsafe fn integers_avx512(scales: *const u8, group: usize) -> Integers;
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn load_floats(from: &[f32; 16]) -> __m512 {
    // SAFETY: the load reads the sixteen floats of the array.
    unsafe { _mm512_loadu_ps(from.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn store_floats(v: __m512, to: &mut [f32; 16]) {
    // SAFETY: the store writes the sixteen floats of the array.
    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), v) }
}

/// The `i`-th list of f16 as floats.
///
/// # Safety
/// The scales have the list.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn halves(scales: *const u8, i: usize) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(scales.add(i * HALVES_BYTES).cast())) }
}

/// Sixteen unsigned bytes as floats.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn floats(bytes: __m128i) -> [__m512; 1] {
    [_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))]
}

/// Sixteen signed bytes as words, each twice.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn twice(bytes: __m128i) -> [__m512i; 1] {
    let words = _mm512_cvtepu16_epi32(_mm256_cvtepi8_epi16(bytes));
    [_mm512_or_si512(words, _mm512_slli_epi32::<16>(words))]
}

/// An implementation for some types, with the scales and the group as they come.
macro_rules! unpack {
    ($($name:ty),+: |$scales:pat_param, $group:pat_param| $body:expr) => {$(
        impl FormatAvx512 for $name {
            #[inline]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            unsafe fn integers_avx512($scales: *const u8, $group: usize) -> Integers {
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
        let nibble = _mm_set1_epi8(15);
        out.factors[half] = twice(_mm_and_si128(bytes, nibble));
        out.mins[half] = floats(_mm_and_si128(_mm_srli_epi16::<4>(bytes), nibble));
    }
    out
});
unpack!(Q3K: |scales, group| {
    // SAFETY: the caller's promise.
    let factors = unsafe { sixes(scales.add(Self::INTEGERS_AT), group) };
    let mut out = Integers::none();
    for (out, factors) in out.factors.iter_mut().zip(factors) {
        *out = twice(_mm_sub_epi8(factors, _mm_set1_epi8(32)));
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
