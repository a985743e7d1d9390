//! 8-bit floats. The scales of FP4 blocks are halved, because their codebook is doubled.

/// Half of `2^(bits - 127)` (OCP `E8M0`). 255, which is NaN in the specification, is a power like the
/// others, as in ggml.
#[inline]
pub fn e8m0_half(bits: u8) -> f32 {
    match bits {
        // Subnormal results.
        0 | 1 => f32::from_bits(0x0020_0000 << bits),
        _ => f32::from_bits(u32::from(bits - 1) << 23),
    }
}

/// Half of an FP8 number of 4 exponent and 3 mantissa bits (`E4M3`), whose bit 7 is ignored. 127, which
/// is NaN in the specification, is 0, as in ggml; 255 is not.
#[inline]
pub fn ue4m3_half(bits: u8) -> f32 {
    let (exponent, mantissa) = (bits >> 3 & 15, f32::from(bits & 7));
    match (bits, exponent) {
        (0x7f, _) => 0.0,
        (_, 0) => mantissa * (0.5 / 512.0),
        _ => (8.0 + mantissa) * f32::from_bits((u32::from(exponent) + 127 - 7 - 3 - 1) << 23),
    }
}

/// The largest finite FP8 number of 4 exponent and 3 mantissa bits (`E4M3`).
pub const E4M3_MAX: f32 = 448.0;

/// The exact value of an FP8 number of 4 exponent and 3 mantissa bits (OCP `E4M3`). 127 and 255, which
/// are NaN in the specification, are 480 and -480; the reader of a file must handle them before, see
/// [`e4m3_is_nan`].
#[inline]
pub fn e4m3(bits: u8) -> f32 {
    let (magnitude, mantissa) = (u32::from(bits & 0x7f), f32::from(bits & 7));
    let value = match magnitude >> 3 {
        0 => mantissa / 512.0,
        _ => f32::from_bits((magnitude << 20) + ((127 - 7) << 23)),
    };
    if bits & 0x80 == 0 { value } else { -value }
}

/// Whether an FP8 number (`E4M3`) is NaN in the specification.
#[inline]
pub const fn e4m3_is_nan(bits: u8) -> bool {
    bits & 0x7f == 0x7f
}

/// The nearest finite FP8 number (`E4M3`), ties to even.
pub(crate) fn to_e4m3(value: f32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    // NaN becomes the largest number.
    let value = value.abs().min(E4M3_MAX);
    let magnitude = if value < 1.0 / 64.0 {
        (value * 512.0).round_ties_even() as u8
    } else {
        let bits = value.to_bits() - ((127 - 7) << 23);
        ((bits + 0x7_ffff + (bits >> 20 & 1)) >> 20) as u8
    };
    sign | magnitude
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e4m3_numbers_are_read_and_made() {
        let by_hand = [
            (0x00, 0.0),
            (0x01, 0.001_953_125),
            (0x07, 0.013_671_875),
            (0x08, 0.015_625),
            (0x09, 0.017_578_125),
            (0x38, 1.0),
            (0x3c, 1.5),
            (0x7e, 448.0),
            (0x7f, 480.0),
            (0xb8, -1.0),
            (0xfe, -448.0),
        ];
        for (bits, value) in by_hand {
            assert_eq!(e4m3(bits), value, "{bits:#x}");
        }
        for bits in (0..=255).filter(|bits| !e4m3_is_nan(*bits)) {
            assert_eq!(to_e4m3(e4m3(bits)), bits, "{bits:#x}");
            // Ties round to the even number.
            if bits & 0x7f < 0x7e {
                let middle = f32::midpoint(e4m3(bits), e4m3(bits + 1));
                assert_eq!(to_e4m3(middle), bits + (bits & 1), "{bits:#x}");
            }
        }
        assert_eq!([f32::MAX, f32::NEG_INFINITY].map(to_e4m3), [0x7e, 0xfe]);
    }
}
