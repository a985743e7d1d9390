//! Kernels of the types with blocks of 32 values, each `w = d * (q - OFFSET) + m`.
//!
//! The dot product of a block is `d * scale * Σ q·x` plus `m` and the offset times
//! the block's sum. The two kinds of terms have sums of their own.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
use super::simd;
use super::{QuantKernels, QuantizedRow};

/// A block of 32 values as integers.
pub(super) struct SmallBlock {
    pub(super) d: f32,
    pub(super) m: f32,
    pub(super) quants: [i16; 32],
}

/// [`SmallBlock`] in registers.
#[cfg(target_arch = "x86_64")]
pub(super) struct SmallBlockAvx2 {
    pub(super) d: f32,
    pub(super) m: f32,
    pub(super) quants: __m256i, // 32 bytes, signed if SIGNED
}

/// A type with blocks of 32 values in `BYTES` bytes.
pub(super) trait Small<const BYTES: usize> {
    /// What is taken from every quant.
    const OFFSET: i16;
    /// Whether quants are signed; then there is neither an offset nor `m`.
    const SIGNED: bool;
    /// Whether `m` is ever other than 0.
    const HAS_MIN: bool;

    /// The block's quants and scales.
    fn unpack(block: &[u8; BYTES]) -> SmallBlock;

    /// The block's quants and scales.
    ///
    /// # Safety
    /// The processor has AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    unsafe fn unpack_avx2(block: &[u8; BYTES]) -> SmallBlockAvx2;
}

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
    let w = w.map(|w| &w.as_chunks::<BYTES>().0[..n_blocks]);
    let quants = x.map(|x| &x.quants.as_chunks::<32>().0[..n_blocks]);
    let scales = x.map(|x| &x.scales[..n_blocks]);
    let sums = x.map(|x| &x.block_sums[..n_blocks]);
    let ones = _mm256_set1_epi16(1);
    let mut acc = [[_mm256_setzero_ps(); N]; R];
    let mut mins = [[0.0_f32; N]; R];
    for b in 0..n_blocks {
        for r in 0..R {
            // SAFETY: this function has the features that `unpack_avx2` asks for.
            let block = unsafe { T::unpack_avx2(&w[r][b]) };
            let magnitudes = _mm256_abs_epi8(block.quants);
            let low = block.m - block.d * f32::from(T::OFFSET);
            for n in 0..N {
                let x = simd::load32_i8(&quants[n][b]);
                // The first factor is unsigned: 8-bit weights give their sign to x.
                let pairs = if T::SIGNED {
                    _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(x, block.quants))
                } else {
                    _mm256_maddubs_epi16(block.quants, x)
                };
                let isum = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, ones));
                let scale = _mm256_set1_ps(block.d * scales[n][b]);
                acc[r][n] = _mm256_fmadd_ps(scale, isum, acc[r][n]);
                if T::HAS_MIN || T::OFFSET != 0 {
                    mins[r][n] = low.mul_add(sums[n][b], mins[r][n]);
                }
            }
        }
    }
    for r in 0..R {
        for n in 0..N {
            out[r * N + n] = simd::sum8(acc[r][n]) + mins[r][n];
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn widen_avx2<T: Small<BYTES>, const BYTES: usize>(w: &[u8], out: &mut [f32]) {
    for (block, out) in w.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        // SAFETY: this function has the features that `unpack_avx2` asks for.
        let block = unsafe { T::unpack_avx2(block) };
        let offset = _mm256_set1_epi8(T::OFFSET as i8);
        let quants = _mm256_sub_epi8(block.quants, offset);
        let (d, m) = (_mm256_set1_ps(block.d), _mm256_set1_ps(block.m));
        let (lo, hi) = (_mm256_castsi256_si128(quants), _mm256_extracti128_si256::<1>(quants));
        let eights = [lo, _mm_srli_si128::<8>(lo), hi, _mm_srli_si128::<8>(hi)];
        for (out, q) in out.as_chunks_mut::<8>().0.iter_mut().zip(eights) {
            let q = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q));
            let v = _mm256_mul_ps(q, d);
            simd::store8_f32(out, if T::HAS_MIN { _mm256_add_ps(v, m) } else { v });
        }
    }
}
