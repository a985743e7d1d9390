//! The kernels in AVX-VNNI: 8-bit dot products in registers of 256 bits, two to a
//! group. Panels and scales are those of AVX2.

use std::arch::x86_64::{
    __m256, __m256i, _mm256_and_si256 as and, _mm256_cvtepi32_ps as to_float,
    _mm256_dpbusd_avx_epi32 as dpbusd, _mm256_fmadd_ps as fmadd, _mm256_loadu_ps as load_f,
    _mm256_loadu_si256 as load, _mm256_mul_ps as mul, _mm256_or_si256 as or,
    _mm256_set1_epi8 as set1_8, _mm256_set1_epi32 as set1_32, _mm256_set1_ps as set1_f,
    _mm256_setzero_ps as zero_f, _mm256_setzero_si256 as zero, _mm256_sll_epi16 as sll_16,
    _mm256_srai_epi32 as srai_32, _mm256_srl_epi16 as srl_16, _mm256_srli_epi16 as srli_16,
    _mm256_storeu_ps as store_f, _mm256_xor_si256 as xor,
};

use super::avx2_scales::{BlockScales, FormatAvx2, Integers};

super::vnni::vnni_kernels!("avxvnni,avx2,fma,f16c", 2, __m256, __m256i, FormatAvx2::integers_avx2);
