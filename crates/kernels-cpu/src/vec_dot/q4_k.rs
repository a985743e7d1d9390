//! Q4_K: f16 scales of the scales and of the minimums, eight 6-bit scales and minimums,
//! 256 quants of 4 bits: `w = d * scale * q - dmin * min`.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
use super::large::LargeBlockAvx2;
use super::large::{Large, LargeBlock, kernels};
#[cfg(target_arch = "x86_64")]
use super::simd;
use super::{Kernels, f16_at};
use realizar_quant::k_scales;

struct Q4K;

pub(super) const KERNELS: Kernels = kernels::<Q4K, 144>();

/// Unpacks the scales and minimums of a block, which follow `d` and `dmin`, to bytes.
pub(super) fn scales_and_mins(block: &[u8]) -> ([u8; 8], [u8; 8]) {
    k_scales::unpack(block[4..].first_chunk().expect("the block is longer"))
}

/// Unpacks the scales and minimums of a block to the words of [`LargeBlockAvx2`].
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn scales_and_mins_avx2(block: &[u8]) -> (__m256i, __m256i) {
    let (scales, mins) = scales_and_mins(block);
    let words = |bytes: [u8; 8]| _mm_cvtepu8_epi16(_mm_cvtsi64_si128(i64::from_le_bytes(bytes)));
    let (scales, mins) = (words(scales), words(mins));
    let mins = _mm256_set_m128i(_mm_unpackhi_epi16(mins, mins), _mm_unpacklo_epi16(mins, mins));
    (_mm256_set_m128i(scales, scales), mins)
}

impl Large<144> for Q4K {
    const OFFSET: i16 = 0;

    fn unpack(block: &[u8; 144]) -> LargeBlock {
        let (scales, mins) = scales_and_mins(block);
        let quants = std::array::from_fn(|i| {
            let byte = block[16 + i / 64 * 32 + i % 32];
            if i % 64 < 32 { byte & 15 } else { byte >> 4 }
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
    unsafe fn unpack_avx2(block: &[u8; 144]) -> LargeBlockAvx2 {
        let (scales, mins) = scales_and_mins_avx2(block);
        let nibble = _mm256_set1_epi8(15);
        let packed = block[16..].as_chunks::<32>().0;
        let mut quants = [_mm256_setzero_si256(); 8];
        for (j, packed) in packed.iter().enumerate() {
            let v = simd::load32(packed);
            quants[2 * j] = _mm256_and_si256(v, nibble);
            quants[2 * j + 1] = _mm256_and_si256(_mm256_srli_epi16::<4>(v), nibble);
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
