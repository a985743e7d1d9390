//! Rounding in the direction that an instruction specifies.
//!
//! Results that are not exact in F64 are first rounded to odd: towards zero, with the last bit set if anything was
//! lost. A second rounding to a type with at least two bits less then equals rounding the exact result, in every
//! direction (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).

/// A rounding direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// `.rn`: to nearest, ties to even.
    Near,
    /// `.rna`: to nearest, ties away from zero.
    NearAway,
    /// `.rz`.
    Zero,
    /// `.rm`.
    Down,
    /// `.rp`.
    Up,
}

impl Rounding {
    pub(crate) fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "rn" => Self::Near,
            "rna" => Self::NearAway,
            "rz" => Self::Zero,
            "rm" => Self::Down,
            "rp" => Self::Up,
            _ => return None,
        })
    }

    /// `.rni` and similar modifiers: rounding to an integer.
    pub(crate) fn parse_integer(word: &str) -> Option<Self> {
        Some(match word {
            "rni" => Self::Near,
            "rzi" => Self::Zero,
            "rmi" => Self::Down,
            "rpi" => Self::Up,
            _ => return None,
        })
    }

    /// Rounds `x` to an integer.
    #[inline]
    pub(crate) fn integer(self, x: f64) -> f64 {
        match self {
            Self::Near => x.round_ties_even(),
            Self::NearAway => x.round(),
            Self::Zero => x.trunc(),
            Self::Down => x.floor(),
            Self::Up => x.ceil(),
        }
    }

    /// Rounds `x` to F32.
    #[inline]
    pub(crate) fn f32(self, x: f64) -> f32 {
        let near = x as f32;
        if x.is_nan() || f64::from(near) == x {
            return near;
        }
        let is_above = f64::from(near) > x;
        match self {
            Self::Near | Self::NearAway => near,
            Self::Down if is_above => near.next_down(),
            Self::Up if !is_above => near.next_up(),
            Self::Zero if is_above && x > 0.0 => near.next_down(),
            Self::Zero if !is_above && x < 0.0 => near.next_up(),
            _ => near,
        }
    }
}

/// Rounds to odd: adjusts `x`, the nearest number to the exact result, if the error `rest` is not zero.
#[inline]
fn to_odd(x: f64, rest: f64) -> f64 {
    let bits = x.to_bits();
    // If the exact result is closer to zero than `x`, the truncated number is the neighbour of `x`.
    let is_beyond = (rest < 0.0) == (x > 0.0);
    let truncated = if is_beyond { bits.wrapping_sub(1) } else { bits };
    let is_inexact = rest != 0.0 && rest.is_finite() && x.is_finite() && x != 0.0;
    f64::from_bits(if is_inexact { truncated | 1 } else { bits })
}

/// `a + b` rounded to odd.
#[inline]
pub(crate) fn add_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let part = sum - a;
    let rest = (a - (sum - part)) + (b - part);
    to_odd(sum, rest)
}

/// `a * b + c` of F32 numbers, rounded to odd in F64.
#[inline]
pub(crate) fn fma_odd(a: f32, b: f32, c: f32) -> f64 {
    add_odd(f64::from(a) * f64::from(b), f64::from(c))
}

/// `a / b` of F32 numbers, rounded to odd in F64.
pub(crate) fn div_odd(a: f32, b: f32) -> f64 {
    let (a, b) = (f64::from(a), f64::from(b));
    let quotient = a / b;
    if !quotient.is_finite() || quotient == 0.0 || b.is_infinite() {
        return quotient;
    }
    // The remainder has the sign of the quotient's error times that of `b`.
    let rest = (-quotient).mul_add(b, a);
    to_odd(quotient, if b < 0.0 { -rest } else { rest })
}

/// The square root of an F32 number, rounded to odd in F64.
pub(crate) fn sqrt_odd(a: f32) -> f64 {
    let a = f64::from(a);
    let root = a.sqrt();
    if !root.is_finite() || root == 0.0 { root } else { to_odd(root, (-root).mul_add(root, a)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_of_f32() {
        let third = 1.0 / 3.0;
        let (below, above) = (f32::from_bits(0x3eaa_aaaa), f32::from_bits(0x3eaa_aaab));
        for (mode, x, expected) in [
            (Rounding::Near, third, above),
            (Rounding::Zero, third, below),
            (Rounding::Down, third, below),
            (Rounding::Up, third, above),
            (Rounding::Near, -third, -above),
            (Rounding::Zero, -third, -below),
            (Rounding::Down, -third, -above),
            (Rounding::Up, -third, -below),
            (Rounding::Zero, 1e300, f32::MAX),
            (Rounding::Up, 1e300, f32::INFINITY),
            (Rounding::Down, 1e-300, 0.0),
            (Rounding::Up, 1e-300, f32::from_bits(1)),
            (Rounding::Up, 0.5, 0.5),
        ] {
            assert_eq!(mode.f32(x), expected, "{mode:?} {x}");
        }
    }

    #[test]
    fn sums_of_far_numbers_keep_their_direction() {
        // 1 + 2^-80 is 1 in F64. Rounded to odd and then up, it is the number above 1.
        let odd = fma_odd(2f32.powi(-40), 2f32.powi(-40), 1.0);
        assert_eq!(Rounding::Up.f32(odd), 1.0 + f32::EPSILON);
        assert_eq!(Rounding::Near.f32(odd), 1.0);
        // An F32 tie that a much smaller term breaks: rounding twice would give the even number.
        let tie = 1.0 + f32::EPSILON / 2.0 + 0.0;
        let product = fma_odd(1.0 + f32::EPSILON, 1.0 + f32::EPSILON, 0.0);
        assert_eq!(Rounding::Near.f32(product), 1.0 + 2.0 * f32::EPSILON);
        assert_eq!(tie, 1.0);
        let above = add_odd(1.0 + f64::from(f32::EPSILON) / 2.0, 2f64.powi(-70));
        assert_eq!(Rounding::Near.f32(above), 1.0 + f32::EPSILON);
        let below = add_odd(1.0 + f64::from(f32::EPSILON) * 1.5, -(2f64.powi(-70)));
        assert_eq!(Rounding::Near.f32(below), 1.0 + f32::EPSILON);
    }

    #[test]
    fn quotients_and_roots() {
        let div = |mode: Rounding, a, b| mode.f32(div_odd(a, b)).to_bits();
        assert_eq!(div(Rounding::Down, 1.0, 3.0), 0x3eaa_aaaa);
        assert_eq!(div(Rounding::Up, 1.0, 3.0), 0x3eaa_aaab);
        assert_eq!(div(Rounding::Up, -1.0, 3.0), 0xbeaa_aaaa);
        assert_eq!(div(Rounding::Zero, 6.0, 3.0), 2.0f32.to_bits());
        assert_eq!(Rounding::Down.f32(sqrt_odd(2.0)).to_bits(), 0x3fb5_04f3);
        assert_eq!(Rounding::Up.f32(sqrt_odd(2.0)).to_bits(), 0x3fb5_04f4);
        assert_eq!(Rounding::Up.f32(sqrt_odd(9.0)), 3.0);
    }
}
