//! The scales of sixteen rows in AVX2 registers of eight rows.

use std::arch::x86_64::*;
use std::arch::x86_64::{
    _mm256_load_si256 as load_int, _mm256_loadu_ps as load_f, _mm256_mul_ps as mul,
    _mm256_set1_epi16 as set1_16, _mm256_set1_ps as set1_f, _mm256_store_si256 as store_int,
    _mm256_storeu_ps as store_f,
};

use super::format::{E4M3_HALF_UNIT, E4M3_SHIFT, HALVES_BYTES};
use super::types::{SIX_LOW, SIXES_LOW};

super::scales::packed_scales!("avx2,fma,f16c", 2, __m256, __m256i, FormatAvx2::integers_avx2);

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn negative(v: __m256) -> __m256 {
    _mm256_xor_ps(v, _mm256_set1_ps(-0.0))
}

/// Loads the `i`-th list of f16 as floats.
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

/// Loads a list of exponents as half of their powers of two.
///
/// # Safety
/// The scales have the list.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn powers(scales: *const u8) -> [__m256; 2] {
    // SAFETY: the caller's promise.
    let bytes = unsafe { load(scales) };
    let mut out = [_mm256_setzero_ps(); 2];
    for (out, bytes) in out.iter_mut().zip([bytes, _mm_srli_si128::<8>(bytes)]) {
        let exponent = _mm256_cvtepu8_epi32(bytes);
        let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(exponent, _mm256_set1_epi32(1)));
        // The scales of exponents 0 and 1 are subnormal.
        let small = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), exponent);
        let is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), exponent);
        *out = _mm256_castsi256_ps(_mm256_blendv_epi8(normal, small, is_small));
    }
    out
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

/// Converts sixteen nonnegative FP8 numbers (`E4M3`) to half of them.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn e4m3_halves(bytes: __m128i) -> [__m256; 2] {
    let low = _mm256_cvtepu8_epi32(bytes);
    let high = _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes));
    [low, high].map(|bits| {
        let tiny = _mm256_castsi256_ps(_mm256_slli_epi32::<{ E4M3_SHIFT as i32 }>(bits));
        _mm256_mul_ps(tiny, _mm256_set1_ps(E4M3_HALF_UNIT))
    })
}

/// Widens sixteen signed bytes to 16 bits, each twice.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn twice(bytes: __m128i) -> [__m256i; 2] {
    // Each byte moves to the upper halves of two words, whose lower halves are cleared, and is then
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

/// The two 6-bit numbers of a group.
///
/// # Safety
/// The pointer is to the numbers of a packed block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn sixes(at: *const u8, group: usize) -> [__m128i; 2] {
    // SAFETY: the caller's promise.
    let (low, high) =
        unsafe { (load(at.add(16 * group)), load(at.add(SIXES_LOW + 16 * (group / 2)))) };
    // The group's four high bits move to the low nibble of each byte.
    let high = _mm_srl_epi16(high, _mm_cvtsi32_si128((group % 2 * 4) as i32));
    let two = _mm_set1_epi8(0x30);
    let a = _mm_and_si128(_mm_slli_epi16::<4>(high), two);
    let b = _mm_and_si128(_mm_slli_epi16::<2>(high), two);
    [_mm_or_si128(low_nibbles(low), a), _mm_or_si128(high_nibbles(low), b)]
}

/// The 6-bit number of a group: low nibbles of two groups share a byte, and high bits of four.
///
/// # Safety
/// The pointer is to the numbers of a packed block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn six(at: *const u8, group: usize) -> __m128i {
    // SAFETY: the caller's promise.
    let (low, high) =
        unsafe { (load(at.add(16 * (group / 2))), load(at.add(SIX_LOW + 16 * (group / 4)))) };
    let low = if group.is_multiple_of(2) { low_nibbles(low) } else { high_nibbles(low) };
    let high = _mm_srl_epi16(high, _mm_cvtsi32_si128((group % 4 * 2) as i32));
    _mm_or_si128(low, _mm_slli_epi16::<4>(_mm_and_si128(high, _mm_set1_epi8(3))))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn low_nibbles(bytes: __m128i) -> __m128i {
    _mm_and_si128(bytes, _mm_set1_epi8(15))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn high_nibbles(bytes: __m128i) -> __m128i {
    low_nibbles(_mm_srli_epi16::<4>(bytes))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn minus_32(bytes: __m128i) -> __m128i {
    _mm_sub_epi8(bytes, _mm_set1_epi8(32))
}

/// `2 * byte + 1`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn odd(bytes: __m128i) -> __m128i {
    _mm_add_epi8(_mm_add_epi8(bytes, bytes), _mm_set1_epi8(1))
}

/// Factor and minimum of IQ1_S nibbles; see [`super::types::iq1_s_integers`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn iq1_s(nibbles: __m128i) -> [__m128i; 2] {
    let factor = odd(_mm_and_si128(nibbles, _mm_set1_epi8(7)));
    // Adjacent bytes do not mix in the 16-bit shift, because eight times a factor is below 128.
    let eight = _mm_slli_epi16::<3>(factor);
    let negative = _mm_cmpgt_epi8(nibbles, _mm_set1_epi8(7));
    let more = _mm_add_epi8(eight, factor);
    let less = _mm_sub_epi8(eight, factor);
    [factor, _mm_blendv_epi8(less, more, negative)]
}
