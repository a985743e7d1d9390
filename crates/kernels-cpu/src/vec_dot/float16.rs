//! F16: IEEE half precision.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::Kernels;
use super::float::{Float, kernels};

struct F16;

pub(super) const KERNELS: Kernels = kernels::<F16, 2>();

impl Float<2> for F16 {
    #[inline]
    fn widen(bytes: [u8; 2]) -> f32 {
        half::f16::from_le_bytes(bytes).to_f32()
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn widen8(bytes: &[[u8; 2]; 8]) -> __m256 {
        // SAFETY: the load reads the 16 bytes of the array.
        let halves = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
        _mm256_cvtph_ps(halves)
    }
}
