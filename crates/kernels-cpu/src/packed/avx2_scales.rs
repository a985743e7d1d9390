//! The scales of 32 columns of sixteen rows in AVX2 registers.

use std::arch::x86_64::*;

use super::format::Format;
use super::panel::GroupScales;
use super::types::{
    HALVES_BYTES, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, SIXES_LOW,
};

/// [`GroupScales`] in registers of eight rows. What a format does not have is not
/// initialized from memory.
#[derive(Clone, Copy)]
pub(super) struct Scales {
    pub(super) scale: [__m256; 2],
    pub(super) mins: [[__m256; 2]; 2],
    pub(super) factors: [[__m256i; 2]; 2],
}

impl Scales {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn zero() -> Self {
        let (f, i) = (_mm256_setzero_ps(), _mm256_setzero_si256());
        Self { scale: [f; 2], mins: [[f; 2]; 2], factors: [[i; 2]; 2] }
    }

    /// The scales of a panel's group.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn load<F: Format>(from: &GroupScales) -> Self {
        let mut to = Self::zero();
        for r in 0..2 {
            // SAFETY: every load reads eight rows of an array of sixteen, on cache lines.
            unsafe {
                to.scale[r] = _mm256_load_ps(from.scale.as_ptr().add(8 * r));
                for half in 0..F::HALVES {
                    if F::HAS_MIN {
                        to.mins[half][r] = _mm256_load_ps(from.mins[half].as_ptr().add(8 * r));
                    }
                    if F::HALVES == 2 {
                        let at = from.factors[half].as_ptr().add(8 * r);
                        to.factors[half][r] = _mm256_load_si256(at.cast());
                    }
                }
            }
        }
        to
    }

    /// Puts the scales in a panel's group.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn store<F: Format>(&self, to: &mut GroupScales) {
        for r in 0..2 {
            // SAFETY: every store writes eight rows of an array of sixteen, on cache lines.
            unsafe {
                _mm256_store_ps(to.scale.as_mut_ptr().add(8 * r), self.scale[r]);
                for half in 0..F::HALVES {
                    if F::HAS_MIN {
                        _mm256_store_ps(to.mins[half].as_mut_ptr().add(8 * r), self.mins[half][r]);
                    }
                    if F::HALVES == 2 {
                        let at = to.factors[half].as_mut_ptr().add(8 * r);
                        _mm256_store_si256(at.cast(), self.factors[half][r]);
                    }
                }
            }
        }
    }
}

/// A format whose scales are unpacked in registers.
pub(super) trait FormatAvx2: Format {
    /// The twin of [`Format::scales`].
    ///
    /// # Safety
    /// The processor has AVX2, FMA and F16C, and the pointer is to the scales of a
    /// packed block.
    unsafe fn scales_avx2(scales: *const u8, group: usize) -> Scales;
}

/// The `i`-th list of f16 as floats.
///
/// # Safety
/// The scales have the list.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn halves(scales: *const u8, i: usize) -> [__m256; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let at = scales.add(i * HALVES_BYTES);
        [_mm256_cvtph_ps(load(at)), _mm256_cvtph_ps(load(at.add(16)))]
    }
}

/// # Safety
/// Sixteen bytes can be read.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn load(at: *const u8) -> __m128i {
    // SAFETY: the caller's promise.
    unsafe { _mm_loadu_si128(at.cast()) }
}

/// Products with sixteen unsigned bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn times_bytes(v: [__m256; 2], bytes: __m128i) -> [__m256; 2] {
    let low = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
    let high = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes)));
    [_mm256_mul_ps(v[0], low), _mm256_mul_ps(v[1], high)]
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn negative(v: [__m256; 2]) -> [__m256; 2] {
    let sign = _mm256_set1_ps(-0.0);
    [_mm256_xor_ps(v[0], sign), _mm256_xor_ps(v[1], sign)]
}

/// Sixteen signed words, each twice, for eight rows a register.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn twice(words: __m256i) -> [__m256i; 2] {
    // Unpacking works within 128-bit lanes: rows 0-3 | 8-11, and 4-7 | 12-15.
    let (a, b) = (_mm256_unpacklo_epi16(words, words), _mm256_unpackhi_epi16(words, words));
    [_mm256_permute2x128_si256::<0x20>(a, b), _mm256_permute2x128_si256::<0x31>(a, b)]
}

/// Minus the products of `d` with sixteen signed words.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn minus_products(d: [__m256; 2], words: __m256i) -> [__m256; 2] {
    let low = _mm256_cvtepi16_epi32(_mm256_castsi256_si128(words));
    let high = _mm256_cvtepi16_epi32(_mm256_extracti128_si256::<1>(words));
    negative([
        _mm256_mul_ps(d[0], _mm256_cvtepi32_ps(low)),
        _mm256_mul_ps(d[1], _mm256_cvtepi32_ps(high)),
    ])
}

/// The two numbers of 6 bits of a group.
///
/// # Safety
/// The pointer is to the numbers of a packed block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn sixes(at: *const u8, group: usize) -> [__m128i; 2] {
    // SAFETY: the caller's promise.
    let (low, high) =
        unsafe { (load(at.add(16 * group)), load(at.add(SIXES_LOW + 16 * (group / 2)))) };
    // The group's four high bits to the low nibble of each byte.
    let high = _mm_srl_epi16(high, _mm_cvtsi32_si128((group % 2 * 4) as i32));
    let (nibble, two) = (_mm_set1_epi8(15), _mm_set1_epi8(0x30));
    let a = _mm_and_si128(_mm_slli_epi16::<4>(high), two);
    let b = _mm_and_si128(_mm_slli_epi16::<2>(high), two);
    [
        _mm_or_si128(_mm_and_si128(low, nibble), a),
        _mm_or_si128(_mm_and_si128(_mm_srli_epi16::<4>(low), nibble), b),
    ]
}

/// Scales with an offset: `-OFFSET * d` is the minimum.
macro_rules! with_offset {
    ($name:ty, $offset:expr) => {
        impl FormatAvx2 for $name {
            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn scales_avx2(scales: *const u8, _group: usize) -> Scales {
                // SAFETY: the caller's promise.
                let scale = unsafe { halves(scales, 0) };
                let offset = _mm256_set1_ps(-$offset);
                let min = [_mm256_mul_ps(scale[0], offset), _mm256_mul_ps(scale[1], offset)];
                Scales { scale, mins: [min; 2], ..Scales::zero() }
            }
        }
    };
}

with_offset!(Q4_0, 8.0);
with_offset!(Q5_0, 16.0);
with_offset!(Q8_0, 0.0);

/// Scales and minimums as they are.
macro_rules! with_minimum {
    ($name:ty) => {
        impl FormatAvx2 for $name {
            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn scales_avx2(scales: *const u8, _group: usize) -> Scales {
                // SAFETY: the caller's promise.
                let (scale, min) = unsafe { (halves(scales, 0), halves(scales, 1)) };
                Scales { scale, mins: [min; 2], ..Scales::zero() }
            }
        }
    };
}

with_minimum!(Q4_1);
with_minimum!(Q5_1);

/// Scales and minimums of 6 bits.
macro_rules! with_sixes {
    ($name:ty) => {
        impl FormatAvx2 for $name {
            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn scales_avx2(scales: *const u8, group: usize) -> Scales {
                // SAFETY: the caller's promise.
                let (d, dmin, [scale, min]) = unsafe {
                    let numbers = sixes(scales.add(2 * HALVES_BYTES), group);
                    (halves(scales, 0), halves(scales, 1), numbers)
                };
                let min = negative(times_bytes(dmin, min));
                Scales { scale: times_bytes(d, scale), mins: [min; 2], ..Scales::zero() }
            }
        }
    };
}

with_sixes!(Q4K);
with_sixes!(Q5K);

impl FormatAvx2 for Q2K {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales_avx2(scales: *const u8, group: usize) -> Scales {
        // SAFETY: the caller's promise.
        let (scale, dmin) = unsafe { (halves(scales, 0), halves(scales, 1)) };
        let mut out = Scales { scale, ..Scales::zero() };
        for half in 0..2 {
            // SAFETY: the caller's promise; a byte for each half of a group and row.
            let bytes = unsafe { load(scales.add(2 * HALVES_BYTES + 16 * (2 * group + half))) };
            let nibble = _mm_set1_epi8(15);
            let high = _mm_and_si128(_mm_srli_epi16::<4>(bytes), nibble);
            out.mins[half] = negative(times_bytes(dmin, high));
            out.factors[half] = twice(_mm256_cvtepu8_epi16(_mm_and_si128(bytes, nibble)));
        }
        out
    }
}

impl FormatAvx2 for Q3K {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales_avx2(scales: *const u8, group: usize) -> Scales {
        // SAFETY: the caller's promise.
        let (scale, numbers) =
            unsafe { (halves(scales, 0), sixes(scales.add(HALVES_BYTES), group)) };
        let mut out = Scales { scale, ..Scales::zero() };
        for half in 0..2 {
            let words = _mm256_cvtepu8_epi16(numbers[half]);
            let words = _mm256_sub_epi16(words, _mm256_set1_epi16(32));
            out.mins[half] = minus_products(scale, _mm256_slli_epi16::<2>(words));
            out.factors[half] = twice(words);
        }
        out
    }
}

impl FormatAvx2 for Q6K {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales_avx2(scales: *const u8, group: usize) -> Scales {
        // SAFETY: the caller's promise.
        let scale = unsafe { halves(scales, 0) };
        let mut out = Scales { scale, ..Scales::zero() };
        for half in 0..2 {
            // SAFETY: the caller's promise; a byte for each half of a group and row.
            let bytes = unsafe { load(scales.add(HALVES_BYTES + 16 * (2 * group + half))) };
            let words = _mm256_cvtepi8_epi16(bytes);
            out.mins[half] = minus_products(scale, _mm256_slli_epi16::<5>(words));
            out.factors[half] = twice(words);
        }
        out
    }
}
