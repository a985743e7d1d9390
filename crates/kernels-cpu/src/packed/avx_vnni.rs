//! The kernels in AVX-VNNI: 8-bit dot products in registers of 256 bits, two to a group. Scales and
//! shuffles are those of AVX2.

use std::arch::x86_64::{
    __m256, __m256i, _mm256_and_si256 as and, _mm256_cvtepi32_ps as to_float,
    _mm256_dpbusd_avx_epi32 as dot, _mm256_fmadd_ps as fmadd, _mm256_loadu_ps as load_f,
    _mm256_loadu_si256 as load, _mm256_mul_ps as mul, _mm256_or_si256 as or,
    _mm256_set1_epi8 as set1_8, _mm256_set1_epi32 as set1_32, _mm256_set1_ps as set1_f,
    _mm256_setzero_ps as zero_f, _mm256_setzero_si256 as zero, _mm256_srai_epi32 as srai_32,
    _mm256_store_si256 as store, _mm256_storeu_ps as store_f, _mm256_xor_si256 as xor,
};

use super::avx2::{down_16, look_up, up_16};
use super::avx2_scales::{BlockScales, FormatAvx2, Integers};
use crate::vec_dot::simd::{prefetch, prefetch_far};

const SIGNED: bool = false;
const DIRECT_ROWS: usize = 2;
const TILE_ROWS: usize = 4;
const REST_ROWS: usize = 1;
const MINS_APART: bool = false;
const FETCH_ROWS: bool = false;

super::dot::dot_kernels!("avxvnni,avx2,fma,f16c", 2, __m256, __m256i, FormatAvx2::integers_avx2);
super::dot::word_products!("avxvnni,avx2,fma,f16c", 2, FormatAvx2);
