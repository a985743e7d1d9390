//! The scales of sixteen rows in one AVX-512 register, as an array of length one, because the shared code
//! has arrays of registers.

use std::arch::x86_64::*;
use std::arch::x86_64::{
    _mm512_load_si512 as load_int, _mm512_loadu_ps as load_f, _mm512_mul_ps as mul,
    _mm512_set1_epi16 as set1_16, _mm512_set1_ps as set1_f, _mm512_store_si512 as store_int,
    _mm512_storeu_ps as store_f,
};

use super::avx2_scales::{high_nibbles, iq1_s, load, low_nibbles, minus_32, odd, six, sixes};
use super::format::{E4M3_HALF_UNIT, E4M3_SHIFT, HALVES_BYTES};

super::scales::packed_scales!(
    "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c",
    1,
    __m512,
    __m512i,
    FormatAvx512::integers_avx512
);

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn negative(v: __m512) -> __m512 {
    _mm512_xor_ps(v, _mm512_set1_ps(-0.0))
}

/// Loads the `i`-th list of f16 as floats.
///
/// # Safety
/// The scales have the list.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn halves(scales: *const u8, i: usize) -> [__m512; 1] {
    // SAFETY: the caller's promise.
    [unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(scales.add(i * HALVES_BYTES).cast())) }]
}

/// Loads a list of exponents as half of their powers of two.
///
/// # Safety
/// The scales have the list.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn powers(scales: *const u8) -> [__m512; 1] {
    // SAFETY: the caller's promise.
    let exponent = _mm512_cvtepu8_epi32(unsafe { load(scales) });
    let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(exponent, _mm512_set1_epi32(1)));
    // The scales of exponents 0 and 1 are subnormal.
    let small = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), exponent);
    let is_small = _mm512_cmplt_epu32_mask(exponent, _mm512_set1_epi32(2));
    [_mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_small, small))]
}

/// Sixteen unsigned bytes as floats.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn floats(bytes: __m128i) -> [__m512; 1] {
    [_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))]
}

/// Converts sixteen nonnegative FP8 numbers (`E4M3`) to half of them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn e4m3_halves(bytes: __m128i) -> [__m512; 1] {
    let bits = _mm512_slli_epi32::<{ E4M3_SHIFT as u32 }>(_mm512_cvtepu8_epi32(bytes));
    [_mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(E4M3_HALF_UNIT))]
}

/// Widens sixteen signed bytes to 16 bits, each twice.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn twice(bytes: __m128i) -> [__m512i; 1] {
    let words = _mm512_cvtepu16_epi32(_mm256_cvtepi8_epi16(bytes));
    [_mm512_or_si512(words, _mm512_slli_epi32::<16>(words))]
}
