//! Q2_K: 16 pairs of a 4-bit scale and a 4-bit minimum, 256 quants of 2 bits, f16
//! scales of the scales and of the minimums: `w = d * scale * q - dmin * min`.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
use super::large::LargeBlockAvx2;
use super::large::{Large, LargeBlock, kernels};
#[cfg(target_arch = "x86_64")]
use super::simd;
use super::{Kernels, f16_at};

struct Q2K;

pub(super) const KERNELS: Kernels = kernels::<Q2K, 84>();

impl Large<84> for Q2K {
    const OFFSET: i16 = 0;

    fn unpack(block: &[u8; 84]) -> LargeBlock {
        let quants = std::array::from_fn(|i| {
            let (half, quarter, l) = (i / 128, i % 128 / 32, i % 32);
            (block[16 + 32 * half + l] >> (2 * quarter)) & 3
        });
        LargeBlock {
            d: f16_at(block, 80),
            dmin: f16_at(block, 82),
            scales: std::array::from_fn(|i| i16::from(block[i] & 15)),
            mins: std::array::from_fn(|i| i16::from(block[i] >> 4)),
            quants,
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn unpack_avx2(block: &[u8; 84]) -> LargeBlockAvx2 {
        let packed = simd::load16(block.first_chunk().expect("the block is longer"));
        let nibble = _mm_set1_epi8(15);
        let scales = _mm_and_si128(packed, nibble);
        let mins = _mm_and_si128(_mm_srli_epi16::<4>(packed), nibble);
        // The scales of even groups of 16 values go to the lower half, those of odd groups to the upper.
        let even_odd = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
        let (three, bytes) = (_mm256_set1_epi8(3), block[16..].as_chunks::<32>().0);
        let mut quants = [_mm256_setzero_si256(); 8];
        for half in 0..2 {
            let v = simd::load32(&bytes[half]);
            let shifted = [
                v,
                _mm256_srli_epi16::<2>(v),
                _mm256_srli_epi16::<4>(v),
                _mm256_srli_epi16::<6>(v),
            ];
            for i in 0..4 {
                quants[4 * half + i] = _mm256_and_si256(shifted[i], three);
            }
        }
        LargeBlockAvx2 {
            d: simd::f16_at(block, 80),
            dmin: simd::f16_at(block, 82),
            scales: _mm256_cvtepu8_epi16(_mm_shuffle_epi8(scales, even_odd)),
            mins: _mm256_cvtepu8_epi16(mins),
            quants,
        }
    }
}
