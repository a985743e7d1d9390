//! Q8_0: an f16 scale and 32 signed quants of 8 bits, `w = d * q`.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::__m256i;

#[cfg(target_arch = "x86_64")]
use super::simd;
use super::small::{Small, SmallBlock, kernels};
use super::{Kernels, f16_at};

struct Q8_0;

pub(super) const KERNELS: Kernels = kernels::<Q8_0, 34>();

impl Small<34> for Q8_0 {
    const OFFSET: i16 = 0;
    const HAS_MIN: bool = false;

    fn unpack(block: &[u8; 34]) -> SmallBlock {
        let quants = std::array::from_fn(|i| i16::from(block[2 + i].cast_signed()));
        SmallBlock { d: f16_at(block, 0), m: 0.0, quants }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants_avx2(block: &[u8; 34]) -> __m256i {
        let &[quants] = block[2..].as_chunks::<32>().0 else { unreachable!("32 bytes of quants") };
        simd::load32(&quants)
    }
}
