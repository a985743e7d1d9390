//! Q4_0: an f16 scale and 32 quants of 4 bits, `w = d * (q - 8)`.

#[cfg(target_arch = "x86_64")]
use super::simd;
#[cfg(target_arch = "x86_64")]
use super::small::SmallBlockAvx2;
use super::small::{Small, SmallBlock, kernels};
use super::{QuantKernels, f16_at};

struct Q4_0;

pub(super) const KERNELS: QuantKernels = kernels::<Q4_0, 18>();

impl Small<18> for Q4_0 {
    const OFFSET: i16 = 8;
    const SIGNED: bool = false;
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
    unsafe fn unpack_avx2(block: &[u8; 18]) -> SmallBlockAvx2 {
        let &[low] = block[2..].as_chunks::<16>().0 else { unreachable!("16 bytes of quants") };
        let quants = simd::nibbles(&low);
        SmallBlockAvx2 { d: simd::f16_at(block, 0), m: 0.0, quants }
    }
}
