//! Q4_K: f16 scales of the scales and of the minimums, eight 6-bit scales and minimums,
//! 256 quants of 4 bits: `w = d * scale * q - dmin * min`.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
use super::large::LargeBlockAvx2;
use super::large::{Large, LargeBlock, kernels};
#[cfg(target_arch = "x86_64")]
use super::simd;
use super::{QuantKernels, f16_at};

struct Q4K;

pub(super) const KERNELS: QuantKernels = kernels::<Q4K, 144>();

/// The eight 6-bit scales and the eight 6-bit minimums of 12 bytes, a byte each.
pub(super) fn scales_and_mins(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let word =
        |i: usize| u32::from_le_bytes([packed[i], packed[i + 1], packed[i + 2], packed[i + 3]]);
    let (a, b, c) = (word(0), word(4), word(8));
    // Four bytes at a time: 6 low bits of a and b, then nibbles of c below the two
    // high bits of a and b.
    let scales_hi = (c & 0x0f0f_0f0f) | ((a >> 2) & 0x3030_3030);
    let mins_hi = ((c >> 4) & 0x0f0f_0f0f) | ((b >> 2) & 0x3030_3030);
    let join = |lo: u32, hi: u32| (u64::from(lo & 0x3f3f_3f3f) | u64::from(hi) << 32).to_le_bytes();
    (join(a, scales_hi), join(b, mins_hi))
}

/// The bytes of the scales and minimums.
fn packed_scales(block: &[u8; 144]) -> &[u8; 12] {
    block[4..].first_chunk().expect("the block is longer")
}

impl Large<144> for Q4K {
    const OFFSET: i16 = 0;

    fn unpack(block: &[u8; 144]) -> LargeBlock {
        let (scales, mins) = scales_and_mins(packed_scales(block));
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
        let (scales, mins) = scales_and_mins(packed_scales(block));
        let words =
            |bytes: [u8; 8]| _mm_cvtepu8_epi16(_mm_cvtsi64_si128(i64::from_le_bytes(bytes)));
        let (scales, mins) = (words(scales), words(mins));
        let mins = _mm256_set_m128i(_mm_unpackhi_epi16(mins, mins), _mm_unpacklo_epi16(mins, mins));
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
            scales: _mm256_set_m128i(scales, scales),
            mins,
            quants,
        }
    }
}
