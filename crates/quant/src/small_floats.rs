//! The 8-bit floats that scale FP4 blocks, halved because their codebook is doubled.

/// Half of 2 to the power `bits - 127` (OCP `E8M0`). 255, which stands for NaN there, is a power
/// like the others, as ggml reads it.
#[inline]
pub fn e8m0_half(bits: u8) -> f32 {
    match bits {
        // Below the normal numbers.
        0 | 1 => f32::from_bits(0x0020_0000 << bits),
        _ => f32::from_bits(u32::from(bits - 1) << 23),
    }
}

/// Half of the FP8 number of 4 exponent and 3 mantissa bits (`E4M3`), of which bit 7 is not read.
/// 127, which stands for NaN there, is 0, as ggml reads it; 255 is not.
#[inline]
pub fn ue4m3_half(bits: u8) -> f32 {
    let (exponent, mantissa) = (bits >> 3 & 15, f32::from(bits & 7));
    match (bits, exponent) {
        (0x7f, _) => 0.0,
        (_, 0) => mantissa * (0.5 / 512.0),
        _ => (8.0 + mantissa) * f32::from_bits((u32::from(exponent) + 127 - 7 - 3 - 1) << 23),
    }
}
