//! Kernels of the types with blocks of 256 values, in which 16 values share an integer scale and
//! minimum: `w = d * scale * (q - OFFSET) - dmin * min`.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::{Kernels, Widen};
#[cfg(target_arch = "x86_64")]
use crate::lanes;

/// A block of 256 values as integers. The minimums include the offset.
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
    /// The number that is subtracted from every quant. If it is not 0, the minimums are `OFFSET * scale`
    /// and `dmin` is `d`.
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

/// The kernels of a type.
pub(super) const fn kernels<T: Large<BYTES>, const BYTES: usize>() -> Kernels {
    let widen = Widen {
        scalar: widen::<T, BYTES>,
        #[cfg(target_arch = "x86_64")]
        avx2: widen_avx2::<T, BYTES>,
    };
    Kernels { widen, dot: None }
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
