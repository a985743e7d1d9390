//! Float formats below 32 bits: conversion to F64, and back with a single rounding.

use super::round::Rounding;

/// A format with a sign, exponent bits and mantissa bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
    /// Whether it has no infinities (E4M3): the highest exponent is used for numbers and one NaN.
    finite_only: bool,
}

pub(crate) const F16: Format = Format { exponent_bits: 5, mantissa_bits: 10, finite_only: false };
pub(crate) const BF16: Format = Format { exponent_bits: 8, mantissa_bits: 7, finite_only: false };
pub(crate) const TF32: Format = Format { exponent_bits: 8, mantissa_bits: 10, finite_only: false };
pub(crate) const E4M3: Format = Format { exponent_bits: 4, mantissa_bits: 3, finite_only: true };
pub(crate) const E5M2: Format = Format { exponent_bits: 5, mantissa_bits: 2, finite_only: false };

impl Format {
    /// Size in bits.
    pub(crate) fn bits(self) -> u32 {
        1 + self.exponent_bits + self.mantissa_bits
    }

    fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    fn sign(self) -> u32 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    /// Bits of the NaN that instructions return.
    pub(crate) fn nan(self) -> u32 {
        self.sign() - 1
    }

    /// Bits of infinity, or of the NaN above the largest number in formats without infinity.
    fn overflow(self) -> u32 {
        if self.finite_only {
            self.nan()
        } else {
            self.nan() >> self.mantissa_bits << self.mantissa_bits
        }
    }

    /// Bits of the largest number.
    pub(crate) fn max(self) -> u32 {
        self.overflow() - 1
    }

    /// Converts to F64.
    #[inline]
    pub(crate) fn widen(self, bits: u32) -> f64 {
        if self == F16 {
            return f64::from(f16_to_f32(bits));
        }
        if self == BF16 {
            return f64::from(f32::from_bits(bits << 16));
        }
        let sign = if bits & self.sign() != 0 { -1.0 } else { 1.0 };
        let magnitude = bits & (self.sign() - 1);
        if magnitude >= self.overflow() {
            let is_infinite = magnitude == self.overflow() && !self.finite_only;
            return if is_infinite { sign * f64::INFINITY } else { f64::NAN };
        }
        let exponent = (magnitude >> self.mantissa_bits) as i32;
        let mantissa = magnitude & ((1 << self.mantissa_bits) - 1);
        let hidden = u32::from(exponent > 0) << self.mantissa_bits;
        let quantum = exponent.max(1) - self.bias() - self.mantissa_bits as i32;
        sign * f64::from(hidden | mantissa) * power_of_two(quantum)
    }

    /// Rounds `x` to the format. With `saturate`, overflow gives the largest number.
    #[inline]
    pub(crate) fn narrow(self, x: f64, mode: Rounding, saturate: bool) -> u32 {
        if x.is_nan() {
            return self.nan();
        }
        let sign = if x.is_sign_negative() { self.sign() } else { 0 };
        let magnitude = x.abs();
        if magnitude.is_infinite() {
            return sign | if saturate { self.max() } else { self.overflow() };
        }
        let least = 1 - self.bias();
        let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(least);
        if exponent > self.bias() + 1 {
            return sign | self.too_large(mode, sign != 0, saturate);
        }
        let scaled = magnitude * power_of_two(self.mantissa_bits as i32 - exponent);
        let whole = scaled as u64;
        let rest = scaled - whole as f64;
        let is_up = match mode {
            Rounding::Near => rest > 0.5 || rest == 0.5 && whole % 2 == 1,
            Rounding::NearAway => rest >= 0.5,
            Rounding::Zero => false,
            Rounding::Down => sign != 0 && rest > 0.0,
            Rounding::Up => sign == 0 && rest > 0.0,
        };
        // The hidden bit adds one to the exponent field, as does a mantissa overflow.
        let bits = ((exponent - least) as u32) << self.mantissa_bits;
        let bits = bits + (whole + u64::from(is_up)) as u32;
        sign | if bits >= self.overflow() {
            self.too_large(mode, sign != 0, saturate)
        } else {
            bits
        }
    }

    fn too_large(self, mode: Rounding, negative: bool, saturate: bool) -> u32 {
        let stays = match mode {
            Rounding::Near | Rounding::NearAway => false,
            Rounding::Zero => true,
            Rounding::Down => !negative,
            Rounding::Up => negative,
        };
        if stays || saturate { self.max() } else { self.overflow() }
    }
}

/// Converts F16 to F32. Its bits at their F32 positions represent the number times 2^-112, also for subnormal numbers.
#[inline]
pub(crate) fn f16_to_f32(bits: u32) -> f32 {
    let moved = (bits & 0x7fff) << 13;
    let number = f32::from_bits(moved) * f32::from_bits((127 + 112) << 23);
    let is_special = bits & 0x7c00 == 0x7c00;
    let magnitude = if is_special { moved | 0x7f80_0000 } else { number.to_bits() };
    f32::from_bits(magnitude | (bits & 0x8000) << 16)
}

/// Rounds `x` to the nearest BF16.
#[inline(always)]
pub(crate) fn f32_to_bf16(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if bits & 0x7fff_ffff > 0x7f80_0000 { 0x7fff } else { rounded }
}

/// Rounds `x` to the nearest F16.
#[inline(always)]
pub(crate) fn f32_to_f16(x: f32) -> u32 {
    let bits = x.to_bits();
    let (sign, magnitude) = (bits >> 16 & 0x8000, bits & 0x7fff_ffff);
    // The quantum of subnormal numbers is 2^-24, which is that of F32 at 2^-1, so adding 2^-1 rounds.
    let small = (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits();
    let normal =
        magnitude.wrapping_add(0xfff + (magnitude >> 13 & 1)).wrapping_sub(112 << 23) >> 13;
    // 65520 is the smallest number that rounds to infinity.
    let finite = if magnitude < 0x3880_0000 { small } else { normal };
    let rounded = if magnitude >= 0x477f_f000 { 0x7c00 } else { finite };
    if magnitude > 0x7f80_0000 { 0x7fff } else { sign | rounded }
}

#[inline]
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_f32_are_rounded_as_by_the_general_way() {
        let edges = [0x3880_0000u32, 0x477f_f000, 0x7f80_0000, 0x7f7f_8000, 0x3300_0000, 0];
        let near = edges.iter().flat_map(|e| (-70i32..70).map(|i| e.wrapping_add_signed(i)));
        let spread = (0..=u32::MAX).step_by(9973).chain((0..=u32::MAX).step_by(0x800));
        for bits in near.chain(spread).flat_map(|bits| [bits, bits | 1 << 31]) {
            let x = f32::from_bits(bits);
            let general = |format: Format| format.narrow(f64::from(x), Rounding::Near, false);
            assert_eq!(f32_to_f16(x), general(F16), "{x:e}");
            assert_eq!(f32_to_bf16(x), general(BF16), "{x:e}");
        }
    }

    #[test]
    fn sixteen_bits_agree_with_half() {
        for bits in 0..=u16::MAX {
            let f16 = half::f16::from_bits(bits);
            let bf16 = half::bf16::from_bits(bits);
            for (format, expected) in [(F16, f16.to_f64()), (BF16, bf16.to_f64())] {
                let found = format.widen(u32::from(bits));
                assert!(found == expected || found.is_nan() && expected.is_nan(), "{bits:#06x}");
                if !found.is_nan() {
                    let back = format.narrow(found, Rounding::Near, false);
                    assert_eq!(back, u32::from(bits), "{format:?}");
                }
            }
        }
        // F32 numbers near every fourth 16-bit number, including ties.
        for bits in (0..=u16::MAX).step_by(4) {
            for step in [-3i32, -1, 0, 1, 2] {
                let wide = half::f16::from_bits(bits).to_f32();
                let wide = f32::from_bits(wide.to_bits().wrapping_add_signed(step * 0x800));
                let brain =
                    f32::from_bits((u32::from(bits) << 16).wrapping_add_signed(step * 0x4000));
                if !wide.is_nan() {
                    let expected = u32::from(half::f16::from_f32(wide).to_bits());
                    assert_eq!(
                        F16.narrow(f64::from(wide), Rounding::Near, false),
                        expected,
                        "{wide}"
                    );
                }
                if !brain.is_nan() {
                    let expected = u32::from(half::bf16::from_f32(brain).to_bits());
                    assert_eq!(
                        BF16.narrow(f64::from(brain), Rounding::Near, false),
                        expected,
                        "{brain}"
                    );
                }
            }
        }
    }

    #[test]
    fn directions_and_limits() {
        for (format, x, mode, saturate, expected) in [
            (F16, 65520.0, Rounding::Near, false, 0x7c00),
            (F16, 65520.0, Rounding::Near, true, 0x7bff),
            (F16, 65519.9, Rounding::Near, false, 0x7bff),
            (F16, 1e9, Rounding::Zero, false, 0x7bff),
            (F16, -1e9, Rounding::Up, false, 0xfbff),
            (F16, 1e-9, Rounding::Up, false, 0x0001),
            (F16, -1e-9, Rounding::Near, false, 0x8000),
            (F16, f64::NAN, Rounding::Near, false, 0x7fff),
            (BF16, 1.0 + 1.0 / 256.0, Rounding::Near, false, 0x3f80),
            (BF16, 1.0 + 1.0 / 256.0, Rounding::NearAway, false, 0x3f81),
            (BF16, 1.0 + 1.9 / 256.0, Rounding::Zero, false, 0x3f80),
            (TF32, 1.0 + 1.0 / 2048.0, Rounding::NearAway, false, 0x1fc01),
            (E4M3, 448.0, Rounding::Near, true, 0x7e),
            (E4M3, 1e6, Rounding::Near, true, 0x7e),
            (E4M3, -0.001_953_125, Rounding::Near, true, 0x81),
            (E4M3, 1.0, Rounding::Near, true, 0x38),
            (E5M2, 57344.0, Rounding::Near, true, 0x7b),
            (E5M2, 1e6, Rounding::Near, true, 0x7b),
            (E5M2, 1.0, Rounding::Near, true, 0x3c),
        ] {
            assert_eq!(format.narrow(x, mode, saturate), expected, "{format:?} {x} {mode:?}");
        }
        assert_eq!(E4M3.widen(0x7e), 448.0);
        assert!(E4M3.widen(0x7f).is_nan());
        assert_eq!(E5M2.widen(0xfc), f64::NEG_INFINITY);
    }
}
