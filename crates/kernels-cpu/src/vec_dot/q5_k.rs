//! Q5_K: as Q4_K, with a fifth bit for every quant in 32 bytes of their own.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
use super::large::LargeBlockAvx2;
use super::large::{Large, LargeBlock, kernels};
use super::q4_k::scales_and_mins;
#[cfg(target_arch = "x86_64")]
use super::q4_k::scales_and_mins_avx2;
#[cfg(target_arch = "x86_64")]
use super::simd;
use super::{Kernels, f16_at};

struct Q5K;

pub(super) const KERNELS: Kernels = kernels::<Q5K, 176>();

impl Large<176> for Q5K {
    const OFFSET: i16 = 0;

    fn unpack(block: &[u8; 176]) -> LargeBlock {
        let (scales, mins) = scales_and_mins(block);
        let quants = std::array::from_fn(|i| {
            let byte = block[48 + i / 64 * 32 + i % 32];
            let low = if i % 64 < 32 { byte & 15 } else { byte >> 4 };
            low | ((block[16 + i % 32] >> (i / 32)) & 1) << 4
        });
        LargeBlock {
            d: f16_at(block, 0),
            dmin: f16_at(block, 2),
            scales: std::array::from_fn(|i| i16::from(scales[i / 2])),
            mins: std::array::from_fn(|i| i16::from(mins[i / 2])),
            quants,
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn unpack_avx2(block: &[u8; 176]) -> LargeBlockAvx2 {
        let (scales, mins) = scales_and_mins_avx2(block);
        let nibble = _mm256_set1_epi8(15);
        let packed = block[48..].as_chunks::<32>().0;
        let &[high, ..] = block[16..].as_chunks::<32>().0 else {
            unreachable!("32 bytes of fifth bits")
        };
        let high = simd::load32(&high);
        let sixteen = _mm256_set1_epi8(16);
        // Bit g of each byte moves to bit 4.
        let fifth = [
            _mm256_slli_epi16::<4>(high),
            _mm256_slli_epi16::<3>(high),
            _mm256_slli_epi16::<2>(high),
            _mm256_slli_epi16::<1>(high),
            high,
            _mm256_srli_epi16::<1>(high),
            _mm256_srli_epi16::<2>(high),
            _mm256_srli_epi16::<3>(high),
        ];
        let mut quants = [_mm256_setzero_si256(); 8];
        for (j, packed) in packed.iter().enumerate() {
            let v = simd::load32(packed);
            quants[2 * j] = _mm256_and_si256(v, nibble);
            quants[2 * j + 1] = _mm256_and_si256(_mm256_srli_epi16::<4>(v), nibble);
        }
        for (q, bit) in quants.iter_mut().zip(fifth) {
            *q = _mm256_or_si256(*q, _mm256_and_si256(bit, sixteen));
        }
        LargeBlockAvx2 {
            d: simd::f16_at(block, 0),
            dmin: simd::f16_at(block, 2),
            scales,
            mins,
            quants,
        }
    }
}
