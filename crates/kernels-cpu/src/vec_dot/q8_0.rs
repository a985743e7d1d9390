//! Q8_0: an f16 scale and 32 signed quants of 8 bits, `w = d * q`.

#[cfg(target_arch = "x86_64")]
use super::simd;
#[cfg(target_arch = "x86_64")]
use super::small::SmallBlockAvx2;
use super::small::{Small, SmallBlock, kernels};
use super::{QuantKernels, f16_at};

struct Q8_0;

pub(super) const KERNELS: QuantKernels = kernels::<Q8_0, 34>();

impl Small<34> for Q8_0 {
    const OFFSET: i16 = 0;
    const SIGNED: bool = true;
    const HAS_MIN: bool = false;

    fn unpack(block: &[u8; 34]) -> SmallBlock {
        let quants = std::array::from_fn(|i| i16::from(block[2 + i].cast_signed()));
        SmallBlock { d: f16_at(block, 0), m: 0.0, quants }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn unpack_avx2(block: &[u8; 34]) -> SmallBlockAvx2 {
        let &[quants] = block[2..].as_chunks::<32>().0 else { unreachable!("32 bytes of quants") };
        SmallBlockAvx2 { d: simd::f16_at(block, 0), m: 0.0, quants: simd::load32(&quants) }
    }
}
