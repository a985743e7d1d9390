//! Integer loads and unpacking for the AVX2 kernels; `lanes` has the float operations.

use std::arch::x86_64::*;

/// Loads 32 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn load32(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: the load reads the 32 bytes of the array.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Loads 16 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn load16(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the load reads the 16 bytes of the array.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// The little-endian f16 at `at`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(crate) fn f16_at(block: &[u8], at: usize) -> f32 {
    let bits = i32::from(u16::from_le_bytes([block[at], block[at + 1]]));
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)))
}

/// The 32 nibbles of 16 bytes: the low ones, then the high ones.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn nibbles(bytes: &[u8; 16]) -> __m256i {
    let v = load16(bytes);
    let both = _mm256_set_m128i(_mm_srli_epi16::<4>(v), v);
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}

/// Expands 32 bits to bytes of 0 or 16: bit `i` to byte `i`.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn bits_to_16(bits: u32) -> __m256i {
    let spread =
        _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let byte = _mm256_shuffle_epi8(_mm256_set1_epi32(bits.cast_signed()), spread);
    let mask = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
    let set = _mm256_cmpeq_epi8(_mm256_and_si256(byte, mask), mask);
    _mm256_and_si256(set, _mm256_set1_epi8(16))
}

/// Prefetches a cache line to L1. The address need not be valid.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn prefetch<T>(at: *const T) {
    _mm_prefetch::<_MM_HINT_T0>(at.cast());
}

/// Prefetches a cache line to L2. The address need not be valid.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn prefetch_far<T>(at: *const T) {
    _mm_prefetch::<_MM_HINT_T1>(at.cast());
}
