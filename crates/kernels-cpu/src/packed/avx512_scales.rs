//! The scales of 32 columns of sixteen rows in AVX-512 registers.

use std::arch::x86_64::*;

use super::avx2_scales::{load, sixes};
use super::format::Format;
use super::panel::GroupScales;
use super::types::{HALVES_BYTES, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};

/// [`GroupScales`] in registers, each in an array of one, as the kernels of narrower
/// registers have arrays of two.
#[derive(Clone, Copy)]
pub(super) struct Scales {
    pub(super) scale: [__m512; 1],
    pub(super) mins: [[__m512; 1]; 2],
    pub(super) factors: [[__m512i; 1]; 2],
}

impl Scales {
    /// A scale and a minimum.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    fn new(scale: __m512, min: __m512) -> Self {
        let factors = [[_mm512_setzero_si512()]; 2];
        Self { scale: [scale], mins: [[min]; 2], factors }
    }

    /// The scales of a panel's group.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub(super) fn load<F: Format>(from: &GroupScales) -> Self {
        // SAFETY: every load reads an array of sixteen, on a cache line.
        unsafe {
            let mut to = Self::new(_mm512_load_ps(from.scale.as_ptr()), _mm512_setzero_ps());
            for half in 0..F::HALVES {
                if F::HAS_MIN {
                    to.mins[half] = [_mm512_load_ps(from.mins[half].as_ptr())];
                }
                if F::HALVES == 2 {
                    to.factors[half] = [_mm512_load_si512(from.factors[half].as_ptr().cast())];
                }
            }
            to
        }
    }

    /// Puts the scales in a panel's group.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub(super) fn store<F: Format>(&self, to: &mut GroupScales) {
        // SAFETY: every store writes an array of sixteen, on a cache line.
        unsafe {
            _mm512_store_ps(to.scale.as_mut_ptr(), self.scale[0]);
            for half in 0..F::HALVES {
                if F::HAS_MIN {
                    _mm512_store_ps(to.mins[half].as_mut_ptr(), self.mins[half][0]);
                }
                if F::HALVES == 2 {
                    let at = to.factors[half].as_mut_ptr();
                    _mm512_store_si512(at.cast(), self.factors[half][0]);
                }
            }
        }
    }
}

/// A format whose scales are unpacked in registers.
pub(super) trait FormatAvx512: Format {
    /// The twin of [`Format::scales`].
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW, DQ and VL, and the pointer is to the scales of a
    /// packed block.
    unsafe fn scales_avx512(scales: *const u8, group: usize) -> Scales;
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

/// Products with sixteen unsigned bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn times_bytes(v: __m512, bytes: __m128i) -> __m512 {
    _mm512_mul_ps(v, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn negative(v: __m512) -> __m512 {
    _mm512_xor_ps(v, _mm512_set1_ps(-0.0))
}

/// Sixteen signed words, each twice.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn twice(words: __m256i) -> __m512i {
    let words = _mm512_cvtepu16_epi32(words);
    _mm512_or_si512(words, _mm512_slli_epi32::<16>(words))
}

/// Minus the products of `d` with sixteen signed words.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn minus_products(d: __m512, words: __m256i) -> __m512 {
    negative(_mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(words))))
}

/// An implementation for a type, with the scales and the group as they come.
macro_rules! unpack {
    ($($name:ty),+: |$scales:ident, $group:pat_param| $body:expr) => {$(
        impl FormatAvx512 for $name {
            #[inline]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            unsafe fn scales_avx512($scales: *const u8, $group: usize) -> Scales {
                // SAFETY: the caller's promise that these are the type's scales.
                unsafe { $body }
            }
        }
    )+};
}

// A minimum from an offset: `-8 d` and `-16 d`.
unpack!(Q4_0: |scales, _| {
    let d = halves(scales, 0);
    Scales::new(d, _mm512_mul_ps(d, _mm512_set1_ps(-8.0)))
});
unpack!(Q5_0: |scales, _| {
    let d = halves(scales, 0);
    Scales::new(d, _mm512_mul_ps(d, _mm512_set1_ps(-16.0)))
});
unpack!(Q8_0: |scales, _| Scales::new(halves(scales, 0), _mm512_setzero_ps()));
unpack!(Q4_1, Q5_1: |scales, _| Scales::new(halves(scales, 0), halves(scales, 1)));
unpack!(Q4K, Q5K: |scales, group| {
    let [scale, min] = sixes(scales.add(2 * HALVES_BYTES), group);
    let min = negative(times_bytes(halves(scales, 1), min));
    Scales::new(times_bytes(halves(scales, 0), scale), min)
});
unpack!(Q2K: |scales, group| {
    let dmin = halves(scales, 1);
    let mut out = Scales::new(halves(scales, 0), dmin);
    for half in 0..2 {
        let bytes = load(scales.add(2 * HALVES_BYTES + 16 * (2 * group + half)));
        let nibble = _mm_set1_epi8(15);
        let high = _mm_and_si128(_mm_srli_epi16::<4>(bytes), nibble);
        out.mins[half] = [negative(times_bytes(dmin, high))];
        out.factors[half] = [twice(_mm256_cvtepu8_epi16(_mm_and_si128(bytes, nibble)))];
    }
    out
});
unpack!(Q3K: |scales, group| {
    let d = halves(scales, 0);
    let mut out = Scales::new(d, d);
    for (half, numbers) in sixes(scales.add(HALVES_BYTES), group).into_iter().enumerate() {
        let words = _mm256_sub_epi16(_mm256_cvtepu8_epi16(numbers), _mm256_set1_epi16(32));
        out.mins[half] = [minus_products(d, _mm256_slli_epi16::<2>(words))];
        out.factors[half] = [twice(words)];
    }
    out
});
unpack!(Q6K: |scales, group| {
    let d = halves(scales, 0);
    let mut out = Scales::new(d, d);
    for half in 0..2 {
        let bytes = load(scales.add(HALVES_BYTES + 16 * (2 * group + half)));
        let words = _mm256_cvtepi8_epi16(bytes);
        out.mins[half] = [minus_products(d, _mm256_slli_epi16::<5>(words))];
        out.factors[half] = [twice(words)];
    }
    out
});
