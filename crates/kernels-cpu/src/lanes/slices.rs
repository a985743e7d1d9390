//! Helpers for kernels written in AVX2: loads, stores, sums, and maps over slices.
//!
//! Loads and stores take arrays or whole slices, so their callers need no `unsafe`. A tail shorter than
//! eight elements is processed in a zero-padded copy, so an element's result does not depend on its
//! place in the row.

use std::arch::x86_64::{
    __m256, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_movehl_ps, _mm_shuffle_ps,
    _mm256_castps256_ps128, _mm256_extractf128_ps, _mm256_loadu_ps, _mm256_storeu_ps,
};

/// Loads eight values.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn load(x: &[f32; 8]) -> __m256 {
    // SAFETY: the array holds the 32 bytes that the unaligned load reads.
    unsafe { _mm256_loadu_ps(x.as_ptr()) }
}

/// Loads 32 values.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn load32(x: &[f32; 32]) -> [__m256; 4] {
    let x = x.as_chunks::<8>().0;
    [load(&x[0]), load(&x[1]), load(&x[2]), load(&x[3])]
}

/// Stores eight values.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn store(v: __m256, out: &mut [f32; 8]) {
    // SAFETY: the array holds the 32 bytes that the unaligned store writes.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), v) }
}

/// Loads up to eight values and fills the other lanes with zero.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn load_partial(x: &[f32]) -> __m256 {
    let mut padded = [0.0; 8];
    padded[..x.len()].copy_from_slice(x);
    load(&padded)
}

/// Stores the first `out.len()` lanes, at most eight.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn store_partial(v: __m256, out: &mut [f32]) {
    let mut padded = [0.0; 8];
    store(v, &mut padded);
    let n = out.len();
    out.copy_from_slice(&padded[..n]);
}

/// The sum of the lanes, as `(0+4 + 2+6) + (1+5 + 3+7)`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn sum(v: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}

/// `x = f(x)` for every element.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn map_in_place(x: &mut [f32], f: impl Fn(__m256) -> __m256) {
    let (whole, tail) = x.as_chunks_mut::<8>();
    for x8 in whole {
        store(f(load(x8)), x8);
    }
    if !tail.is_empty() {
        store_partial(f(load_partial(tail)), tail);
    }
}

/// `x = f(x, y)` for every element of two slices of one length.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn zip_in_place(x: &mut [f32], y: &[f32], f: impl Fn(__m256, __m256) -> __m256) {
    assert_eq!(x.len(), y.len(), "lengths of a map");
    let (x_whole, x_tail) = x.as_chunks_mut::<8>();
    let (y_whole, y_tail) = y.as_chunks::<8>();
    for (x8, y8) in x_whole.iter_mut().zip(y_whole) {
        store(f(load(x8), load(y8)), x8);
    }
    if !y_tail.is_empty() {
        store_partial(f(load_partial(x_tail), load_partial(y_tail)), x_tail);
    }
}

/// `out = f(x, y)` for every element of three slices of one length.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn zip(x: &[f32], y: &[f32], out: &mut [f32], f: impl Fn(__m256, __m256) -> __m256) {
    assert!(x.len() == out.len() && y.len() == out.len(), "lengths of a map");
    let (x_whole, x_tail) = x.as_chunks::<8>();
    let (y_whole, y_tail) = y.as_chunks::<8>();
    let (out_whole, out_tail) = out.as_chunks_mut::<8>();
    for ((x8, y8), out8) in x_whole.iter().zip(y_whole).zip(out_whole) {
        store(f(load(x8), load(y8)), out8);
    }
    if !out_tail.is_empty() {
        store_partial(f(load_partial(x_tail), load_partial(y_tail)), out_tail);
    }
}
