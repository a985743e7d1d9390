//! The kernels in AVX-512 VNNI: 8-bit dot products in 512-bit registers, one per group.

use std::arch::x86_64::{
    __m512, __m512i, _mm_cvtsi32_si128, _mm_loadu_si128, _mm512_and_si512 as and,
    _mm512_broadcast_i32x4, _mm512_cvtepi32_ps as to_float, _mm512_dpbusd_epi32 as dot,
    _mm512_fmadd_ps as fmadd, _mm512_loadu_ps as load_f, _mm512_loadu_si512 as load,
    _mm512_mul_ps as mul, _mm512_or_si512 as or, _mm512_set1_epi8 as set1_8,
    _mm512_set1_epi32 as set1_32, _mm512_set1_ps as set1_f, _mm512_setzero_ps as zero_f,
    _mm512_setzero_si512 as zero, _mm512_shuffle_epi8, _mm512_sll_epi16,
    _mm512_srai_epi32 as srai_32, _mm512_srl_epi16, _mm512_store_si512 as store,
    _mm512_storeu_ps as store_f, _mm512_xor_si512 as xor,
};

use super::avx512_scales::{BlockScales, FormatAvx512, Integers};
use crate::vec_dot::simd::{prefetch, prefetch_far};

const SIGNED: bool = false;

super::dot::dot_kernels!(
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c",
    1,
    __m512,
    __m512i,
    FormatAvx512::integers_avx512
);
super::dot::two_panel_kernels!(
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c",
    FormatAvx512
);

/// The codebook's values at indices of one byte each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn look_up(codebook: &[i8; 16], levels: __m512i) -> __m512i {
    // SAFETY: the load reads the array.
    let codebook = unsafe { _mm_loadu_si128(codebook.as_ptr().cast()) };
    _mm512_shuffle_epi8(_mm512_broadcast_i32x4(codebook), levels)
}

/// Shifts each 16 bits right.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn down_16(v: __m512i, bits: usize) -> __m512i {
    _mm512_srl_epi16(v, _mm_cvtsi32_si128(bits as i32))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn up_16(v: __m512i, bits: usize) -> __m512i {
    _mm512_sll_epi16(v, _mm_cvtsi32_si128(bits as i32))
}

/// The two scales of each row's block.
///
/// # Safety
/// The pointer is to the scales of a packed block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn block_scales<F: FormatAvx512>(scales: *const u8) -> [__m512; 2] {
    // SAFETY: the caller's promise.
    let BlockScales { scale: [scale], min_scale: [min_scale] } =
        unsafe { BlockScales::unpack::<F>(scales) };
    [scale, min_scale]
}

/// Factors and minimums of each row, for both halves of 32 columns, as floats.
///
/// # Safety
/// The pointer is to the scales of a packed block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn factors_and_mins<F: FormatAvx512>(
    scales: *const u8,
    group: usize,
) -> [[__m512; 2]; 2] {
    // SAFETY: the caller's promise.
    let Integers { factors: [[a], [b]], mins: [[c], [d]] } =
        unsafe { F::integers_avx512(scales, group) };
    [[to_float(srai_32::<16>(a)), to_float(srai_32::<16>(b))], [c, d]]
}

/// The four quants of word `q` of each row, signed if the format's are.
///
/// # Safety
/// The pointer is to the planes of 32 columns of the format.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn quants<F: FormatAvx512>(planes: *const u8, q: usize) -> __m512i {
    // SAFETY: the caller's promise.
    let [word] = unsafe { plane_word::<F>(planes, q) };
    word
}
