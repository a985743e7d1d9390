//! Kernels of the types with blocks of 32 values, each `w = d * (q - OFFSET) + m`.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
use super::simd;
use super::{Kernels, Widen};
#[cfg(target_arch = "x86_64")]
use crate::lanes;

/// A block of 32 values as integers.
pub(super) struct SmallBlock {
    pub(super) d: f32,
    pub(super) m: f32,
    pub(super) quants: [i16; 32],
}

/// A type with blocks of 32 values in `BYTES` bytes, which begin with `d` as f16, and then `m` as f16
/// if [`Self::HAS_MIN`].
pub(super) trait Small<const BYTES: usize> {
    /// The number that is subtracted from every quant.
    const OFFSET: i16;
    /// Whether blocks have a minimum `m`; otherwise it is 0.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "for vector kernels"))]
    const HAS_MIN: bool;

    /// The block's quants and scales.
    fn unpack(block: &[u8; BYTES]) -> SmallBlock;

    /// The block's quants: 32 bytes, signed if there is no offset.
    ///
    /// # Safety
    /// The processor has AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    unsafe fn quants_avx2(block: &[u8; BYTES]) -> __m256i;
}

/// The kernels of a type.
pub(super) const fn kernels<T: Small<BYTES>, const BYTES: usize>() -> Kernels {
    let widen = Widen {
        scalar: widen::<T, BYTES>,
        #[cfg(target_arch = "x86_64")]
        avx2: widen_avx2::<T, BYTES>,
    };
    Kernels { widen, dot: None }
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
fn widen_avx2<T: Small<BYTES>, const BYTES: usize>(w: &[u8], out: &mut [f32]) {
    let offset = _mm256_set1_epi8(T::OFFSET as i8);
    for (block, out) in w.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        let d = _mm256_set1_ps(simd::f16_at(block, 0));
        let m = _mm256_set1_ps(if T::HAS_MIN { simd::f16_at(block, 2) } else { 0.0 });
        // SAFETY: this function has the features that `quants_avx2` asks for.
        let quants = _mm256_sub_epi8(unsafe { T::quants_avx2(block) }, offset);
        let (lo, hi) = (_mm256_castsi256_si128(quants), _mm256_extracti128_si256::<1>(quants));
        let eights = [lo, _mm_srli_si128::<8>(lo), hi, _mm_srli_si128::<8>(hi)];
        for (out, q) in out.as_chunks_mut::<8>().0.iter_mut().zip(eights) {
            let q = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q));
            let v = _mm256_mul_ps(q, d);
            lanes::store(if T::HAS_MIN { _mm256_add_ps(v, m) } else { v }, out);
        }
    }
}
