//! F32: weights as they are.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::Kernels;
use super::float::{Float, kernels};

struct F32;

pub(super) const KERNELS: Kernels = kernels::<F32, 4>();

impl Float<4> for F32 {
    #[inline]
    fn widen(bytes: [u8; 4]) -> f32 {
        f32::from_le_bytes(bytes)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn widen8(bytes: &[[u8; 4]; 8]) -> __m256 {
        // SAFETY: the load reads the 32 bytes of the array.
        unsafe { _mm256_loadu_ps(bytes.as_ptr().cast()) }
    }
}
