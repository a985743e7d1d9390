//! Kernels of the types with blocks of 32 values, each `w = d * (q - OFFSET) + m`.
//!
//! The dot product of a block is `d * scale * Σ q·x` plus `m` and the offset times
//! the block's sum. The two kinds of terms have sums of their own. In registers, 8
//! blocks at a time have their scales computed together.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
use super::simd;
use super::{QuantKernels, QuantizedRow};
#[cfg(target_arch = "x86_64")]
use crate::lanes;

/// A block of 32 values as integers.
pub(super) struct SmallBlock {
    pub(super) d: f32,
    pub(super) m: f32,
    pub(super) quants: [i16; 32],
}

/// A type with blocks of 32 values in `BYTES` bytes, of which the first two are `d`
/// as f16, and the next two `m` as f16 if there is one.
pub(super) trait Small<const BYTES: usize> {
    /// What is taken from every quant.
    const OFFSET: i16;
    /// Whether quants are signed; then there is neither an offset nor `m`.
    const SIGNED: bool;
    /// Whether `m` is ever other than 0.
    const HAS_MIN: bool;

    /// The block's quants and scales.
    fn unpack(block: &[u8; BYTES]) -> SmallBlock;

    /// The block's quants: 32 bytes, signed if [`Self::SIGNED`].
    ///
    /// # Safety
    /// The processor has AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    unsafe fn quants_avx2(block: &[u8; BYTES]) -> __m256i;
}

/// How far ahead a row is fetched into the cache, in blocks.
#[cfg(target_arch = "x86_64")]
const PREFETCH_BLOCKS: usize = 32;

/// The kernels of a type.
pub(super) const fn kernels<T: Small<BYTES>, const BYTES: usize>() -> QuantKernels {
    QuantKernels {
        dot: dot::<T, BYTES>,
        widen: widen::<T, BYTES>,
        #[cfg(target_arch = "x86_64")]
        dot_avx2: dot_avx2::<T, BYTES>,
        #[cfg(target_arch = "x86_64")]
        widen_avx2: widen_avx2::<T, BYTES>,
    }
}

fn dot<T: Small<BYTES>, const BYTES: usize>(w: &[&[u8]], x: &[QuantizedRow<'_>], out: &mut [f32]) {
    for (w, out) in w.iter().zip(out.chunks_exact_mut(x.len())) {
        for (x, out) in x.iter().zip(out) {
            *out = dot_one::<T, BYTES>(w, x);
        }
    }
}

fn dot_one<T: Small<BYTES>, const BYTES: usize>(w: &[u8], x: &QuantizedRow<'_>) -> f32 {
    let (mut sum, mut mins) = (0.0, 0.0);
    let quants = x.quants.as_chunks::<32>().0;
    for (b, block) in w.as_chunks::<BYTES>().0.iter().enumerate() {
        let block = T::unpack(block);
        let pairs = block.quants.iter().zip(&quants[b]);
        let isum: i32 = pairs.map(|(&w, &x)| i32::from(w) * i32::from(x)).sum();
        sum += block.d * x.scales[b] * isum as f32;
        mins += (block.m - block.d * f32::from(T::OFFSET)) * x.block_sums[b];
    }
    sum + mins
}

fn widen<T: Small<BYTES>, const BYTES: usize>(w: &[u8], out: &mut [f32]) {
    for (block, out) in w.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        let block = T::unpack(block);
        for (out, q) in out.iter_mut().zip(block.quants) {
            *out = f32::from(q - T::OFFSET) * block.d + block.m;
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_avx2<T: Small<BYTES>, const BYTES: usize>(
    w: &[&[u8]],
    x: &[QuantizedRow<'_>],
    out: &mut [f32],
) {
    match (w, x) {
        (&[a, b, c, d], &[x0]) => dot_rows::<T, BYTES, 4, 1>([a, b, c, d], [x0], out),
        (&[a, b, c, d], &[x0, x1]) => dot_rows::<T, BYTES, 4, 2>([a, b, c, d], [x0, x1], out),
        (&[a, b, c, d], &[x0, x1, x2, x3]) => {
            for (w, out) in [[a, b], [c, d]].into_iter().zip(out.chunks_exact_mut(8)) {
                dot_rows::<T, BYTES, 2, 4>(w, [x0, x1, x2, x3], out);
            }
        }
        (&[w], &[x0]) => dot_rows::<T, BYTES, 1, 1>([w], [x0], out),
        (&[w], &[x0, x1]) => dot_rows::<T, BYTES, 1, 2>([w], [x0, x1], out),
        (&[w], &[x0, x1, x2, x3]) => dot_rows::<T, BYTES, 1, 4>([w], [x0, x1, x2, x3], out),
        _ => panic!("no kernel for {} x {} rows", w.len(), x.len()),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_rows<T: Small<BYTES>, const BYTES: usize, const R: usize, const N: usize>(
    w: [&[u8]; R],
    x: [QuantizedRow<'_>; N],
    out: &mut [f32],
) {
    let n_blocks = x[0].scales.len();
    let n_eights = n_blocks / 8;
    let w = blocks_of::<BYTES, R>(w, n_blocks);
    let w8 = eights(w);
    let XBlocks { quants, scales, sums } = XBlocks::new(&x);
    let (quants8, scales8, sums8) = (eights(quants), eights(scales), eights(sums));
    let mut acc = [[_mm256_setzero_ps(); N]; R];
    let mut mins = [[_mm256_setzero_ps(); N]; R];
    for b in 0..n_eights {
        for r in 0..R {
            let blocks = &w8[r][b];
            let at = blocks.as_ptr().wrapping_add(PREFETCH_BLOCKS).cast::<u8>();
            for line in 0..(8 * BYTES).div_ceil(64) {
                simd::prefetch(at.wrapping_add(64 * line));
            }
            let (d, low) = scales_of_8::<T, BYTES>(blocks);
            let mut products = [[0.0; 8]; N];
            for n in 0..N {
                let x_scales = lanes::load(&scales8[n][b]);
                lanes::store(_mm256_mul_ps(d, x_scales), &mut products[n]);
                if T::HAS_MIN || T::OFFSET != 0 {
                    let x_sums = lanes::load(&sums8[n][b]);
                    mins[r][n] = _mm256_fmadd_ps(low, x_sums, mins[r][n]);
                }
            }
            // Even and odd blocks apart, so that one addition need not wait for another.
            let mut sum = [[_mm256_setzero_ps(); 2]; N];
            for g in 0..8 {
                // SAFETY: this function has the features that `quants_avx2` asks for.
                let q = unsafe { T::quants_avx2(&blocks[g]) };
                for n in 0..N {
                    let isum = block_dot::<T, BYTES>(q, &quants8[n][b][g]);
                    let product = _mm256_set1_ps(products[n][g]);
                    sum[n][g % 2] = _mm256_fmadd_ps(product, isum, sum[n][g % 2]);
                }
            }
            for n in 0..N {
                acc[r][n] = _mm256_add_ps(acc[r][n], _mm256_add_ps(sum[n][0], sum[n][1]));
            }
        }
    }
    for r in 0..R {
        for n in 0..N {
            let mut sum = lanes::sum(_mm256_add_ps(acc[r][n], mins[r][n]));
            for b in n_eights * 8..n_blocks {
                let block = &w[r][b];
                let (d, low) = scales_of_1::<T, BYTES>(block);
                // SAFETY: this function has the features that `quants_avx2` asks for.
                let q = unsafe { T::quants_avx2(block) };
                let isum = lanes::sum(block_dot::<T, BYTES>(q, &quants[n][b]));
                sum = (d * scales[n][b]).mul_add(isum, sum);
                sum = low.mul_add(sums[n][b], sum);
            }
            out[r * N + n] = sum;
        }
    }
}

// The views below are made apart from the kernels, because code inside array
// combinators does not inherit the features of the kernel around it.

/// The blocks of weight rows.
#[cfg(target_arch = "x86_64")]
#[inline]
fn blocks_of<const BYTES: usize, const R: usize>(
    w: [&[u8]; R],
    n_blocks: usize,
) -> [&[[u8; BYTES]]; R] {
    w.map(|w| &w.as_chunks::<BYTES>().0[..n_blocks])
}

/// Whole eights of the items of each row.
#[cfg(target_arch = "x86_64")]
#[inline]
fn eights<T, const N: usize>(rows: [&[T]; N]) -> [&[[T; 8]]; N] {
    rows.map(|row| row.as_chunks::<8>().0)
}

/// Activation rows by blocks.
#[cfg(target_arch = "x86_64")]
struct XBlocks<'a, const N: usize> {
    quants: [&'a [[i8; 32]]; N],
    scales: [&'a [f32]; N],
    sums: [&'a [f32]; N],
}

#[cfg(target_arch = "x86_64")]
impl<'a, const N: usize> XBlocks<'a, N> {
    #[inline]
    fn new(x: &[QuantizedRow<'a>; N]) -> Self {
        let n_blocks = x[0].scales.len();
        Self {
            quants: x.map(|x| &x.quants.as_chunks::<32>().0[..n_blocks]),
            scales: x.map(|x| &x.scales[..n_blocks]),
            sums: x.map(|x| &x.block_sums[..n_blocks]),
        }
    }
}

/// The products of a block's quants, summed in 8 lanes: small integers, exact in f32.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn block_dot<T: Small<BYTES>, const BYTES: usize>(q: __m256i, x: &[i8; 32]) -> __m256 {
    let x = simd::load32_i8(x);
    // The first factor is unsigned: signed weights give their sign to x.
    let pairs = if T::SIGNED {
        _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(x, q))
    } else {
        _mm256_maddubs_epi16(q, x)
    };
    _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
}

/// `d` of a block, and what is added to every weight.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scales_of_1<T: Small<BYTES>, const BYTES: usize>(block: &[u8; BYTES]) -> (f32, f32) {
    let d = simd::f16_at(block, 0);
    let low = if T::HAS_MIN { simd::f16_at(block, 2) } else { -f32::from(T::OFFSET) * d };
    (d, low)
}

/// [`scales_of_1`] of 8 blocks.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scales_of_8<T: Small<BYTES>, const BYTES: usize>(blocks: &[[u8; BYTES]; 8]) -> (__m256, __m256) {
    let head = |i: usize| {
        let block = &blocks[i];
        _mm_cvtsi32_si128(i32::from_le_bytes([block[0], block[1], block[2], block[3]]))
    };
    let pair = |i: usize| _mm_unpacklo_epi32(head(i), head(i + 1));
    let four = |i: usize| _mm_unpacklo_epi64(pair(i), pair(i + 2));
    let (a, b) = (four(0), four(4)); // low halves: d; high halves: m
    let d = _mm_packus_epi32(
        _mm_blend_epi16::<0xaa>(a, _mm_setzero_si128()),
        _mm_blend_epi16::<0xaa>(b, _mm_setzero_si128()),
    );
    let d = _mm256_cvtph_ps(d);
    let low = if T::HAS_MIN {
        _mm256_cvtph_ps(_mm_packus_epi32(_mm_srli_epi32::<16>(a), _mm_srli_epi32::<16>(b)))
    } else {
        _mm256_mul_ps(d, _mm256_set1_ps(-f32::from(T::OFFSET)))
    };
    (d, low)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn widen_avx2<T: Small<BYTES>, const BYTES: usize>(w: &[u8], out: &mut [f32]) {
    let offset = _mm256_set1_epi8(T::OFFSET as i8);
    for (block, out) in w.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        let (d, low) = scales_of_1::<T, BYTES>(block);
        // SAFETY: this function has the features that `quants_avx2` asks for.
        let quants = _mm256_sub_epi8(unsafe { T::quants_avx2(block) }, offset);
        let (d, low) = (_mm256_set1_ps(d), _mm256_set1_ps(low));
        let (lo, hi) = (_mm256_castsi256_si128(quants), _mm256_extracti128_si256::<1>(quants));
        let eights = [lo, _mm_srli_si128::<8>(lo), hi, _mm_srli_si128::<8>(hi)];
        for (out, q) in out.as_chunks_mut::<8>().0.iter_mut().zip(eights) {
            let q = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q));
            let v = _mm256_mul_ps(q, d);
            lanes::store(if T::HAS_MIN { _mm256_add_ps(v, low) } else { v }, out);
        }
    }
}
