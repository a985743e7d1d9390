//! The scales of sixteen rows in AVX2 registers of eight.

use std::arch::x86_64::*;

use super::format::{Format, HALVES_BYTES};
use super::panel::GroupScales;
use super::types::{Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, SIXES_LOW};

/// The scales of a block.
#[derive(Clone, Copy)]
pub(super) struct BlockScales {
    pub(super) scale: [__m256; 2],
    /// Zero where the format has no minimums.
    pub(super) min_scale: [__m256; 2],
}

impl BlockScales {
    /// The scales of a packed block.
    ///
    /// # Safety
    /// The processor has AVX2, FMA and F16C, and the pointer is to the scales of a packed
    /// block.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn unpack<F: Format>(scales: *const u8) -> Self {
        // SAFETY: the caller's promise.
        let scale = unsafe { halves(scales, 0) };
        let mut min_scale = [_mm256_setzero_ps(); 2];
        if let Some(ratio) = F::MIN_PER_SCALE {
            let ratio = _mm256_set1_ps(ratio);
            min_scale = [_mm256_mul_ps(ratio, scale[0]), _mm256_mul_ps(ratio, scale[1])];
        } else if F::MINS > 0 {
            // SAFETY: the caller's promise.
            min_scale = unsafe { halves(scales, 1) };
            if F::FACTORS > 0 {
                // Where minimums are integers they are subtracted.
                let sign = _mm256_set1_ps(-0.0);
                min_scale = [_mm256_xor_ps(min_scale[0], sign), _mm256_xor_ps(min_scale[1], sign)];
            }
        }
        Self { scale, min_scale }
    }

    /// The scales of the block of a panel's group.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn load<F: Format>(from: &GroupScales) -> Self {
        let zero = [_mm256_setzero_ps(); 2];
        let min_scale = if F::MINS > 0 { load_floats(&from.min_scale) } else { zero };
        Self { scale: load_floats(&from.scale), min_scale }
    }

    /// Puts the scales in a panel's group.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
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
    pub(super) factors: [[__m256i; 2]; 2],
    pub(super) mins: [[__m256; 2]; 2],
}

impl Integers {
    /// No integers.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn none() -> Self {
        let (factor, min) = (_mm256_set1_epi16(1), _mm256_set1_ps(1.0));
        Self { factors: [[factor; 2]; 2], mins: [[min; 2]; 2] }
    }

    /// The integers of a panel's group.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn load<F: Format>(from: &GroupScales) -> Self {
        let mut to = Self::none();
        if F::FACTORS == 0 {
            return to;
        }
        for half in 0..F::FACTORS {
            for r in 0..2 {
                // SAFETY: the load reads eight rows of an array of sixteen, on cache lines.
                to.factors[half][r] =
                    unsafe { _mm256_load_si256(from.factors[half].as_ptr().add(8 * r).cast()) };
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
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn store<F: Format>(&self, to: &mut GroupScales) {
        if F::FACTORS == 0 {
            return;
        }
        for half in 0..F::FACTORS {
            for r in 0..2 {
                // SAFETY: the store writes eight rows of an array of sixteen, on cache lines.
                unsafe {
                    let at = to.factors[half].as_mut_ptr().add(8 * r);
                    _mm256_store_si256(at.cast(), self.factors[half][r]);
                }
            }
        }
        for half in 0..F::MINS {
            store_floats(self.mins[half], &mut to.mins[half]);
        }
    }
}

/// A format whose integers are unpacked in registers.
pub(super) trait FormatAvx2: Format {
    /// The twin of [`Format::integers`], from the scales of a packed block.
    ///
    /// # Safety
    /// The processor has AVX2, FMA and F16C, and the pointer is to the scales of a packed
    /// block.
    unsafe fn integers_avx2(scales: *const u8, group: usize) -> Integers;
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_floats(from: &[f32; 16]) -> [__m256; 2] {
    // SAFETY: the loads read the sixteen floats of the array.
    unsafe { [_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))] }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store_floats(v: [__m256; 2], to: &mut [f32; 16]) {
    // SAFETY: the stores write the sixteen floats of the array.
    unsafe {
        _mm256_storeu_ps(to.as_mut_ptr(), v[0]);
        _mm256_storeu_ps(to.as_mut_ptr().add(8), v[1]);
    }
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

/// Sixteen unsigned bytes as floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn floats(bytes: __m128i) -> [__m256; 2] {
    let low = _mm256_cvtepu8_epi32(bytes);
    let high = _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes));
    [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)]
}

/// Sixteen signed bytes as words, each twice.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn twice(bytes: __m128i) -> [__m256i; 2] {
    // Each byte goes to the upper half of two words, whose lower half is cleared, and is
    // shifted down.
    const fn places(first: i64) -> i64 {
        const CLEAR: i64 = 0x80;
        let (a, b) = (first << 8 | CLEAR, (first + 1) << 8 | CLEAR);
        a | a << 16 | b << 32 | b << 48
    }
    let bytes = _mm256_broadcastsi128_si256(bytes);
    let low = _mm256_setr_epi64x(places(0), places(2), places(4), places(6));
    let high = _mm256_setr_epi64x(places(8), places(10), places(12), places(14));
    [
        _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(bytes, low)),
        _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(bytes, high)),
    ]
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

/// An implementation for some types, with the scales and the group as they come.
macro_rules! unpack {
    ($($name:ty),+: |$scales:pat_param, $group:pat_param| $body:expr) => {$(
        impl FormatAvx2 for $name {
            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn integers_avx2($scales: *const u8, $group: usize) -> Integers {
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
