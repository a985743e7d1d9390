//! Q4_0: an f16 scale and 32 quants of 4 bits, `w = d * (q - 8)`.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::__m256i;

#[cfg(target_arch = "x86_64")]
use super::simd;
use super::small::{Small, SmallBlock, kernels};
use super::{Kernels, f16_at};

struct Q4_0;

pub(super) const KERNELS: Kernels = kernels::<Q4_0, 18>();

impl Small<18> for Q4_0 {
    const OFFSET: i16 = 8;
    const HAS_MIN: bool = false;

    fn unpack(block: &[u8; 18]) -> SmallBlock {
        let quants = std::array::from_fn(|i| {
            let byte = block[2 + i % 16];
            i16::from(if i < 16 { byte & 15 } else { byte >> 4 })
        });
        SmallBlock { d: f16_at(block, 0), m: 0.0, quants }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants_avx2(block: &[u8; 18]) -> __m256i {
        let &[low] = block[2..].as_chunks::<16>().0 else { unreachable!("16 bytes of quants") };
        simd::nibbles(&low)
    }
}
