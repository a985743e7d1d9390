//! The kernels in AVX-VNNI: 8-bit dot products in 256-bit registers, two per group. Scales are those of AVX2.

use std::arch::x86_64::{
    __m256, __m256i, _mm_cvtsi32_si128, _mm_loadu_si128, _mm256_and_si256 as and,
    _mm256_broadcastsi128_si256, _mm256_cvtepi32_ps as to_float, _mm256_dpbusd_avx_epi32 as dot,
    _mm256_fmadd_ps as fmadd, _mm256_loadu_ps as load_f, _mm256_loadu_si256 as load,
    _mm256_mul_ps as mul, _mm256_or_si256 as or, _mm256_set1_epi8 as set1_8,
    _mm256_set1_epi32 as set1_32, _mm256_set1_ps as set1_f, _mm256_setzero_ps as zero_f,
    _mm256_setzero_si256 as zero, _mm256_shuffle_epi8, _mm256_sll_epi16,
    _mm256_srai_epi32 as srai_32, _mm256_srl_epi16, _mm256_store_si256 as store,
    _mm256_storeu_ps as store_f, _mm256_xor_si256 as xor,
};

use super::avx2_scales::{BlockScales, FormatAvx2, Integers};
use crate::vec_dot::simd::{prefetch, prefetch_far};

const SIGNED: bool = false;

super::dot::dot_kernels!("avxvnni,avx2,fma,f16c", 2, __m256, __m256i, FormatAvx2::integers_avx2);

/// The codebook's values at indices of one byte each.
#[inline]
#[target_feature(enable = "avxvnni,avx2,fma,f16c")]
fn look_up(codebook: &[i8; 16], levels: __m256i) -> __m256i {
    // SAFETY: the load reads the array.
    let codebook = unsafe { _mm_loadu_si128(codebook.as_ptr().cast()) };
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(codebook), levels)
}

/// Shifts each 16 bits right.
#[inline]
#[target_feature(enable = "avxvnni,avx2,fma,f16c")]
fn down_16(v: __m256i, bits: usize) -> __m256i {
    _mm256_srl_epi16(v, _mm_cvtsi32_si128(bits as i32))
}

#[inline]
#[target_feature(enable = "avxvnni,avx2,fma,f16c")]
fn up_16(v: __m256i, bits: usize) -> __m256i {
    _mm256_sll_epi16(v, _mm_cvtsi32_si128(bits as i32))
}
