//! Q6_K: an f16 scale, 16 signed 8-bit scales, 256 quants of 6 bits:
//! `w = d * scale * (q - 32)`.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
use super::large::LargeBlockAvx2;
use super::large::{Large, LargeBlock, kernels};
#[cfg(target_arch = "x86_64")]
use super::simd;
use super::{Kernels, f16_at};

struct Q6K;

pub(super) const KERNELS: Kernels = kernels::<Q6K, 210>();

impl Large<210> for Q6K {
    const OFFSET: i16 = 32;

    fn unpack(block: &[u8; 210]) -> LargeBlock {
        let scales = std::array::from_fn(|i| i16::from(block[192 + i].cast_signed()));
        let quants = std::array::from_fn(|i| {
            let (half, quarter, l) = (i / 128, i % 128 / 32, i % 32);
            let low = block[64 * half + quarter % 2 * 32 + l] >> (quarter / 2 * 4);
            let high = block[128 + 32 * half + l] >> (2 * quarter);
            low & 15 | (high & 3) << 4
        });
        let d = f16_at(block, 208);
        LargeBlock { d, dmin: d, scales, mins: scales.map(|s| 32 * s), quants }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn unpack_avx2(block: &[u8; 210]) -> LargeBlockAvx2 {
        let &[packed] = block[192..].as_chunks::<16>().0 else { unreachable!("16 scales") };
        let packed = simd::load16(&packed);
        // The scales of even groups of 16 values go to the lower half, those of odd groups to the upper.
        let even_odd = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
        let scales = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(packed, even_odd));
        let mins = _mm256_slli_epi16::<5>(_mm256_cvtepi8_epi16(packed));
        let bytes = block.as_chunks::<32>().0; // 4 of low bits, 2 of high bits
        let (nibble, two) = (_mm256_set1_epi8(15), _mm256_set1_epi8(0x30));
        let mut quants = [_mm256_setzero_si256(); 8];
        for half in 0..2 {
            let high = simd::load32(&bytes[4 + half]);
            let (a, b) = (simd::load32(&bytes[2 * half]), simd::load32(&bytes[2 * half + 1]));
            let low = [a, b, _mm256_srli_epi16::<4>(a), _mm256_srli_epi16::<4>(b)];
            // Two bits of each byte move to bits 4 and 5.
            let high = [
                _mm256_slli_epi16::<4>(high),
                _mm256_slli_epi16::<2>(high),
                high,
                _mm256_srli_epi16::<2>(high),
            ];
            for i in 0..4 {
                let (low, high) =
                    (_mm256_and_si256(low[i], nibble), _mm256_and_si256(high[i], two));
                quants[4 * half + i] = _mm256_or_si256(low, high);
            }
        }
        let d = simd::f16_at(block, 208);
        LargeBlockAvx2 { d, dmin: d, scales, mins, quants }
    }
}
