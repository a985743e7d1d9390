//! Q5_1: an f16 scale, an f16 minimum, 32 fifth bits and 32 quants of 4 bits,
//! `w = d * q + m`.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256i, _mm256_or_si256};

#[cfg(target_arch = "x86_64")]
use super::simd;
use super::small::{Small, SmallBlock, kernels};
use super::{Kernels, f16_at};

struct Q5_1;

pub(super) const KERNELS: Kernels = kernels::<Q5_1, 24>();

impl Small<24> for Q5_1 {
    const OFFSET: i16 = 0;
    const HAS_MIN: bool = true;

    fn unpack(block: &[u8; 24]) -> SmallBlock {
        let high = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
        let quants = std::array::from_fn(|i| {
            let byte = block[8 + i % 16];
            let low = if i < 16 { byte & 15 } else { byte >> 4 };
            i16::from(low | (((high >> i) & 1) << 4) as u8)
        });
        SmallBlock { d: f16_at(block, 0), m: f16_at(block, 2), quants }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants_avx2(block: &[u8; 24]) -> __m256i {
        let &[low] = block[8..].as_chunks::<16>().0 else { unreachable!("16 bytes of quants") };
        let low = simd::nibbles(&low);
        let high = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
        _mm256_or_si256(low, simd::bits_to_16(high))
    }
}
