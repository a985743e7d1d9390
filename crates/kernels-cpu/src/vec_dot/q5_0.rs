//! Q5_0: an f16 scale, 32 fifth bits and 32 quants of 4 bits, `w = d * (q - 16)`.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256i, _mm256_or_si256};

#[cfg(target_arch = "x86_64")]
use super::simd;
use super::small::{Small, SmallBlock, kernels};
use super::{Kernels, f16_at};

struct Q5_0;

pub(super) const KERNELS: Kernels = kernels::<Q5_0, 22>();

impl Small<22> for Q5_0 {
    const OFFSET: i16 = 16;
    const HAS_MIN: bool = false;

    fn unpack(block: &[u8; 22]) -> SmallBlock {
        let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
        let quants = std::array::from_fn(|i| {
            let byte = block[6 + i % 16];
            let low = if i < 16 { byte & 15 } else { byte >> 4 };
            i16::from(low | (((high >> i) & 1) << 4) as u8)
        });
        SmallBlock { d: f16_at(block, 0), m: 0.0, quants }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants_avx2(block: &[u8; 22]) -> __m256i {
        let &[low] = block[6..].as_chunks::<16>().0 else { unreachable!("16 bytes of quants") };
        let low = simd::nibbles(&low);
        let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
        _mm256_or_si256(low, simd::bits_to_16(high))
    }
}
