//! Kernels of the types with blocks of 256 values, where 16 values share an integer
//! scale and minimum: `w = d * scale * (q - OFFSET) - dmin * min`.
//!
//! The dot product of a block is `d * Σ scale_x * isum - dmin * Σ scale_x * imin` over
//! its 8 groups of 32, where `isum` and `imin` are integers computed exactly.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
use super::simd;
use super::{QuantKernels, QuantizedRow};
#[cfg(target_arch = "x86_64")]
use crate::lanes;

/// A block of 256 values as integers. An offset is part of the minimums.
pub(super) struct LargeBlock {
    pub(super) d: f32,
    pub(super) dmin: f32,
    pub(super) scales: [i16; 16],
    pub(super) mins: [i16; 16],
    pub(super) quants: [u8; 256],
}

/// [`LargeBlock`] in registers.
#[cfg(target_arch = "x86_64")]
pub(super) struct LargeBlockAvx2 {
    pub(super) d: f32,
    pub(super) dmin: f32,
    pub(super) scales: __m256i, // words 0 2 4 .. 14 | 1 3 5 .. 15
    pub(super) mins: __m256i,   // words in order
    pub(super) quants: [__m256i; 8],
}

/// A type with blocks of 256 values in `BYTES` bytes.
pub(super) trait Large<const BYTES: usize> {
    /// What is taken from every quant; then the minimums are `OFFSET * scale` and
    /// `dmin` is `d`.
    const OFFSET: i16;

    /// The block's quants and scales.
    fn unpack(block: &[u8; BYTES]) -> LargeBlock;

    /// The block's quants and scales.
    ///
    /// # Safety
    /// The processor has AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    unsafe fn unpack_avx2(block: &[u8; BYTES]) -> LargeBlockAvx2;
}

/// How far ahead a row is fetched into the cache, in blocks.
#[cfg(target_arch = "x86_64")]
const PREFETCH_BLOCKS: usize = 4;

/// The kernels of a type.
pub(super) const fn kernels<T: Large<BYTES>, const BYTES: usize>() -> QuantKernels {
    QuantKernels {
        dot: dot::<T, BYTES>,
        widen: widen::<T, BYTES>,
        #[cfg(target_arch = "x86_64")]
        dot_avx2: dot_avx2::<T, BYTES>,
        #[cfg(target_arch = "x86_64")]
        widen_avx2: widen_avx2::<T, BYTES>,
    }
}

fn dot<T: Large<BYTES>, const BYTES: usize>(w: &[&[u8]], x: &[QuantizedRow<'_>], out: &mut [f32]) {
    for (w, out) in w.iter().zip(out.chunks_exact_mut(x.len())) {
        for (x, out) in x.iter().zip(out) {
            *out = dot_one::<T, BYTES>(w, x);
        }
    }
}

fn dot_one<T: Large<BYTES>, const BYTES: usize>(w: &[u8], x: &QuantizedRow<'_>) -> f32 {
    let mut total = 0.0;
    let quants = x.quants.as_chunks::<32>().0;
    for (b, block) in w.as_chunks::<BYTES>().0.iter().enumerate() {
        let block = T::unpack(block);
        let (mut sum, mut mins) = (0.0, 0.0);
        for g in 0..8 {
            let (mut isum, mut imin) = (0_i32, 0_i32);
            for half in 2 * g..2 * g + 2 {
                let x_half = &quants[8 * b + g][half % 2 * 16..][..16];
                let pairs = block.quants[16 * half..][..16].iter().zip(x_half);
                let products: i32 = pairs.map(|(&w, &x)| i32::from(w) * i32::from(x)).sum();
                isum += i32::from(block.scales[half]) * products;
                imin += i32::from(block.mins[half]) * i32::from(x.sums[16 * b + half]);
            }
            sum += x.scales[8 * b + g] * isum as f32;
            mins += x.scales[8 * b + g] * imin as f32;
        }
        total += block.d * sum - block.dmin * mins;
    }
    total
}

fn widen<T: Large<BYTES>, const BYTES: usize>(w: &[u8], out: &mut [f32]) {
    for (block, out) in w.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<256>().0) {
        let block = T::unpack(block);
        for (i, (out, q)) in out.iter_mut().zip(block.quants).enumerate() {
            let scale = block.d * f32::from(block.scales[i / 16]);
            let min = if T::OFFSET == 0 { block.dmin * f32::from(block.mins[i / 16]) } else { 0.0 };
            *out = scale * f32::from(i16::from(q) - T::OFFSET) - min;
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_avx2<T: Large<BYTES>, const BYTES: usize>(
    w: &[&[u8]],
    x: &[QuantizedRow<'_>],
    out: &mut [f32],
) {
    match (w, x) {
        (&[a, b, c, d], &[x0]) => dot_rows::<T, BYTES, 4, 1>([a, b, c, d], [x0], out),
        (&[a, b, c, d], &[x0, x1]) => dot_rows::<T, BYTES, 4, 2>([a, b, c, d], [x0, x1], out),
        (&[a, b, c, d], &[x0, x1, x2, x3]) => {
            dot_rows::<T, BYTES, 4, 4>([a, b, c, d], [x0, x1, x2, x3], out);
        }
        (&[w], &[x0]) => dot_rows::<T, BYTES, 1, 1>([w], [x0], out),
        (&[w], &[x0, x1]) => dot_rows::<T, BYTES, 1, 2>([w], [x0, x1], out),
        (&[w], &[x0, x1, x2, x3]) => dot_rows::<T, BYTES, 1, 4>([w], [x0, x1, x2, x3], out),
        _ => panic!("no kernel for {} x {} rows", w.len(), x.len()),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_rows<T: Large<BYTES>, const BYTES: usize, const R: usize, const N: usize>(
    w: [&[u8]; R],
    x: [QuantizedRow<'_>; N],
    out: &mut [f32],
) {
    let n_blocks = x[0].scales.len() / 8;
    let w = blocks_of::<BYTES, R>(w, n_blocks);
    let XBlocks { quants, scales, sums } = XBlocks::new(&x, n_blocks);
    let mut acc = [[_mm256_setzero_ps(); N]; R];
    for b in 0..n_blocks {
        for r in 0..R {
            let at = w[r].as_ptr().wrapping_add(b + PREFETCH_BLOCKS).cast::<u8>();
            for line in 0..BYTES.div_ceil(64) {
                simd::prefetch(at.wrapping_add(64 * line));
            }
            // SAFETY: this function has the features that `unpack_avx2` asks for.
            let block = unsafe { T::unpack_avx2(&w[r][b]) };
            let (d, dmin) = (_mm256_set1_ps(block.d), _mm256_set1_ps(block.dmin));
            let mut sum = [_mm256_setzero_ps(); N];
            for (g, &q) in block.quants.iter().enumerate() {
                // Sums of pairs of products, each times the scale of its 16 values.
                let word = _mm256_set1_epi16(0x0100 + 0x0202 * g as i16);
                let scale = _mm256_shuffle_epi8(block.scales, word);
                for n in 0..N {
                    let x = simd::load32_i8(&quants[n][b].as_chunks::<32>().0[g]);
                    let pairs = _mm256_maddubs_epi16(q, x);
                    let isum = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, scale));
                    sum[n] = _mm256_fmadd_ps(_mm256_set1_ps(scales[n][b][g]), isum, sum[n]);
                }
            }
            for n in 0..N {
                let imin = _mm256_madd_epi16(block.mins, simd::load16_i16(&sums[n][b]));
                let x_scales = lanes::load(&scales[n][b]);
                let mins = _mm256_mul_ps(_mm256_cvtepi32_ps(imin), x_scales);
                acc[r][n] = _mm256_fmadd_ps(d, sum[n], acc[r][n]);
                acc[r][n] = _mm256_fnmadd_ps(dmin, mins, acc[r][n]);
            }
        }
    }
    for r in 0..R {
        for n in 0..N {
            out[r * N + n] = lanes::sum(acc[r][n]);
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

/// Activation rows by blocks.
#[cfg(target_arch = "x86_64")]
struct XBlocks<'a, const N: usize> {
    quants: [&'a [[i8; 256]]; N],
    scales: [&'a [[f32; 8]]; N],
    sums: [&'a [[i16; 16]]; N],
}

#[cfg(target_arch = "x86_64")]
impl<'a, const N: usize> XBlocks<'a, N> {
    #[inline]
    fn new(x: &[QuantizedRow<'a>; N], n_blocks: usize) -> Self {
        Self {
            quants: x.map(|x| &x.quants.as_chunks::<256>().0[..n_blocks]),
            scales: x.map(|x| &x.scales.as_chunks::<8>().0[..n_blocks]),
            sums: x.map(|x| &x.sums.as_chunks::<16>().0[..n_blocks]),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn widen_avx2<T: Large<BYTES>, const BYTES: usize>(w: &[u8], out: &mut [f32]) {
    for (block, out) in w.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<256>().0) {
        // SAFETY: this function has the features that `unpack_avx2` asks for.
        let block = unsafe { T::unpack_avx2(block) };
        let (mut scales, mut mins) = ([0_i16; 16], [0_i16; 16]);
        // SAFETY: the stores write the 32 bytes of the arrays.
        unsafe {
            _mm256_storeu_si256(scales.as_mut_ptr().cast(), block.scales);
            _mm256_storeu_si256(mins.as_mut_ptr().cast(), block.mins);
        }
        let offset = _mm256_set1_epi8(T::OFFSET as i8);
        for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let q = _mm256_sub_epi8(block.quants[g], offset);
            let halves = [_mm256_castsi256_si128(q), _mm256_extracti128_si256::<1>(q)];
            for (half, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                let scale = _mm256_set1_ps(block.d * f32::from(scales[g + 8 * half]));
                let min = _mm256_set1_ps(block.dmin * f32::from(mins[2 * g + half]));
                let eights = [halves[half], _mm_srli_si128::<8>(halves[half])];
                for (out, q) in out.as_chunks_mut::<8>().0.iter_mut().zip(eights) {
                    let v = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)));
                    lanes::store(if T::OFFSET == 0 { _mm256_sub_ps(v, min) } else { v }, out);
                }
            }
        }
    }
}
