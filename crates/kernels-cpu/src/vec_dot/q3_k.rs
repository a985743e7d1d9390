//! Q3_K: 32 bytes of third bits, 256 quants of 2 bits, 16 scales of 6 bits less 32,
//! an f16 scale: `w = d * scale * (q - 4)`.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
use super::large::LargeBlockAvx2;
use super::large::{Large, LargeBlock, kernels};
#[cfg(target_arch = "x86_64")]
use super::simd;
use super::{Kernels, f16_at};

struct Q3K;

pub(super) const KERNELS: Kernels = kernels::<Q3K, 110>();

/// The 16 scales: low nibbles in 8 bytes, pairs of high bits in 4.
fn scales(block: &[u8; 110]) -> [i8; 16] {
    let packed = &block[96..108];
    std::array::from_fn(|i| {
        let low = (packed[i % 8] >> (i / 8 * 4)) & 15;
        let high = (packed[8 + i % 4] >> (i / 4 * 2)) & 3;
        (low | high << 4).cast_signed() - 32
    })
}

impl Large<110> for Q3K {
    const OFFSET: i16 = 4;

    fn unpack(block: &[u8; 110]) -> LargeBlock {
        let scales = scales(block);
        let quants = std::array::from_fn(|i| {
            let (half, quarter, l) = (i / 128, i % 128 / 32, i % 32);
            let low = (block[32 + 32 * half + l] >> (2 * quarter)) & 3;
            low | ((block[l] >> (i / 32)) & 1) << 2
        });
        let d = f16_at(block, 108);
        let scales = scales.map(i16::from);
        LargeBlock { d, dmin: d, scales, mins: scales.map(|s| 4 * s), quants }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn unpack_avx2(block: &[u8; 110]) -> LargeBlockAvx2 {
        let scales = scales(block).map(i8::cast_unsigned);
        let packed = simd::load16(&scales);
        // The scales of even groups of 16 values go to the lower half, those of odd groups to the upper.
        let even_odd = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
        let scales = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(packed, even_odd));
        let mins = _mm256_slli_epi16::<2>(_mm256_cvtepi8_epi16(packed));
        let bytes = block.as_chunks::<32>().0; // third bits, then two of low bits
        let (three, four) = (_mm256_set1_epi8(3), _mm256_set1_epi8(4));
        let high = simd::load32(&bytes[0]);
        // Bit g of each byte moves to bit 2.
        let third = [
            _mm256_slli_epi16::<2>(high),
            _mm256_slli_epi16::<1>(high),
            high,
            _mm256_srli_epi16::<1>(high),
            _mm256_srli_epi16::<2>(high),
            _mm256_srli_epi16::<3>(high),
            _mm256_srli_epi16::<4>(high),
            _mm256_srli_epi16::<5>(high),
        ];
        let mut quants = [_mm256_setzero_si256(); 8];
        for half in 0..2 {
            let v = simd::load32(&bytes[1 + half]);
            let shifted = [
                v,
                _mm256_srli_epi16::<2>(v),
                _mm256_srli_epi16::<4>(v),
                _mm256_srli_epi16::<6>(v),
            ];
            for i in 0..4 {
                let q = &mut quants[4 * half + i];
                let third = _mm256_and_si256(third[4 * half + i], four);
                *q = _mm256_or_si256(third, _mm256_and_si256(shifted[i], three));
            }
        }
        let d = simd::f16_at(block, 108);
        LargeBlockAvx2 { d, dmin: d, scales, mins, quants }
    }
}
