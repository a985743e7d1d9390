//! Conversion of half-precision numbers stored as little-endian bytes.
//!
//! Blocks store scales as `[u8; 2]`, which needs no alignment.

use half::{bf16, f16};

/// The value of a little-endian IEEE 754 binary16.
#[inline]
pub fn f16_to_f32(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}

/// The nearest binary16 (ties to even) as little-endian bytes; infinite past 65504.
#[inline]
pub fn f32_to_f16(value: f32) -> [u8; 2] {
    f16::from_f32(value).to_le_bytes()
}

/// The value of a little-endian bfloat16.
#[inline]
pub fn bf16_to_f32(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

/// The nearest bfloat16 (ties to even) as little-endian bytes; NaN stays NaN.
#[inline]
pub fn f32_to_bf16(value: f32) -> [u8; 2] {
    bf16::from_f32(value).to_le_bytes()
}
