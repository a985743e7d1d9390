//! Q4_1: an f16 scale, an f16 minimum and 32 quants of 4 bits, `w = d * q + m`.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::__m256i;

#[cfg(target_arch = "x86_64")]
use super::simd;
use super::small::{Small, SmallBlock, kernels};
use super::{Kernels, f16_at};

struct Q4_1;

pub(super) const KERNELS: Kernels = kernels::<Q4_1, 20>();

impl Small<20> for Q4_1 {
    const OFFSET: i16 = 0;
    const HAS_MIN: bool = true;

    fn unpack(block: &[u8; 20]) -> SmallBlock {
        let quants = std::array::from_fn(|i| {
            let byte = block[4 + i % 16];
            i16::from(if i < 16 { byte & 15 } else { byte >> 4 })
        });
        SmallBlock { d: f16_at(block, 0), m: f16_at(block, 2), quants }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants_avx2(block: &[u8; 20]) -> __m256i {
        let &[low] = block[4..].as_chunks::<16>().0 else { unreachable!("16 bytes of quants") };
        simd::nibbles(&low)
    }
}
