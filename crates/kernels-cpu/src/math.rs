//! `exp`, `tanh`, `sigmoid` and `erf` in f32: scalar functions and their
//! sixteen-lane twins.
//!
//! Both forms use the same reductions and polynomials; the vector form fuses
//! multiply and add, so the two may differ within the stated bounds. Against
//! f64, in units in the last place of the f32 result (or the smallest normal
//! f32 where the result is below it): `exp` 2, `tanh` 3, `sigmoid` 4, `erf` 3.
//! `sigmoid` is zero below -88.7, where its value is subnormal. All take
//! infinities to their limits and NaN to NaN.

/// Adding and subtracting it rounds a small value to the nearest integer, ties to even.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
/// `exp` is infinite from `EXP_HI` on, and zero below `EXP_LO`.
const EXP_HI: f32 = 89.0;
const EXP_LO: f32 = -104.0;
/// ln 2 as a sum: `LN2_HI` has few enough bits that its products with exponents are exact.
const LN2_HI: f32 = 0.693_359_4;
const LN2_LO: f32 = -2.121_944_4e-4;
/// (e^r - 1 - r) / r² on |r| <= ln 2 / 2, highest degree first (Cephes `expf`).
const EXP_POLY: [f32; 6] =
    [1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
/// Below this magnitude `tanh` is an odd polynomial.
const TANH_SPLIT: f32 = 0.625;
/// (tanh x - x) / x³ as a polynomial in x², highest degree first (Cephes `tanhf`).
const TANH_POLY: [f32; 5] =
    [-5.704_989e-3, 2.063_908_8e-2, -5.373_971_5e-2, 1.333_144_2e-1, -3.333_328e-1];
/// Below this magnitude `erf` is an odd polynomial.
const ERF_SPLIT: f32 = 0.927_734_4;
/// `erf` rounds to one from here on.
const ERF_HI: f32 = 4.0;
/// (erf x - x) / x as a polynomial in x², highest degree first (after N. Juffa).
const ERF_POLY: [f32; 6] = [
    -5.967_617e-4,
    4.991_194e-3,
    -2.676_813_5e-2,
    1.128_199_25e-1,
    -3.761_253_4e-1,
    1.283_791_7e-1,
];
/// ln(1 - erf x) / x + 1 as a polynomial in x, highest degree first (after N. Juffa).
const ERFC_POLY: [f32; 7] = [
    -1.728_534_7e-5,
    3.831_971_3e-4,
    -3.883_964_4e-3,
    2.425_462_2e-2,
    -1.067_778_8e-1,
    -6.348_467e-1,
    -1.287_175_1e-1,
];

/// Evaluates a polynomial whose highest coefficient comes first.
#[inline(always)]
fn poly<const N: usize>(x: f32, coefficients: &[f32; N]) -> f32 {
    coefficients[1..].iter().fold(coefficients[0], |p, &c| p * x + c)
}

/// `e^x`, within 2 ULP. It has no branches, so that loops of it become vectors.
#[inline]
pub fn exp(x: f32) -> f32 {
    let x = x.clamp(EXP_LO, EXP_HI);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN2_HI) - n * LN2_LO;
    let y = poly(r, &EXP_POLY) * (r * r) + r + 1.0;
    // Two factors of half the exponent reach both ends of the range. For NaN the exponent is
    // arbitrary, but the product is NaN.
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed();
    let pow2 = |n: i32| f32::from_bits(n.wrapping_add(127).cast_unsigned() << 23);
    y * pow2(n >> 1) * pow2(n.wrapping_sub(n >> 1))
}

/// `e^x` for `x` of at most zero, within 2 ULP, and zero from -87 down. It takes fewer instructions
/// than [`exp`] because one factor covers its exponents.
#[inline(always)]
pub fn exp_nonpositive(x: f32) -> f32 {
    const LO: f32 = -87.0;
    // The rounding constant includes the exponent's bias.
    const ROUND_BIASED: f32 = ROUND + 127.0;
    let inside = x > LO;
    let x = if inside { x } else { LO };
    let shifted = x * std::f32::consts::LOG2_E + ROUND_BIASED;
    let n = shifted - ROUND_BIASED;
    let r = (x - n * LN2_HI) - n * LN2_LO;
    let y = poly(r, &EXP_POLY) * (r * r) + r + 1.0;
    let y = y * f32::from_bits(shifted.to_bits() << 23);
    if inside { y } else { 0.0 }
}

/// The hyperbolic tangent, within 3 ULP.
#[inline]
pub fn tanh(x: f32) -> f32 {
    let a = x.abs();
    if a < TANH_SPLIT {
        let z = x * x;
        return poly(z, &TANH_POLY) * z * x + x;
    }
    (1.0 - 2.0 / (exp(2.0 * a) + 1.0)).copysign(x)
}

/// `1 / (1 + e^-x)`, within 4 ULP; zero where the value is subnormal and `e^-x` infinite.
#[inline]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The error function, within 3 ULP.
#[inline]
pub fn erf(x: f32) -> f32 {
    let a = x.abs();
    if a < ERF_SPLIT {
        return poly(x * x, &ERF_POLY) * x + x;
    }
    // Not `min`, which would drop a NaN.
    let a = if a > ERF_HI { ERF_HI } else { a };
    (1.0 - exp(poly(a, &ERFC_POLY) * a - a)).copysign(x)
}

/// The sixteen-lane twins, with the same bits on every tier that has them.
#[cfg(target_arch = "x86_64")]
pub(crate) mod vector {
    use super::{
        ERF_HI, ERF_POLY, ERF_SPLIT, ERFC_POLY, EXP_HI, EXP_LO, EXP_POLY, LN2_HI, LN2_LO,
        TANH_POLY, TANH_SPLIT,
    };
    use crate::lanes::Lanes;

    #[inline(always)]
    fn poly<L: Lanes, const N: usize>(l: L, x: L::W, coefficients: &[f32; N]) -> L::W {
        let mut p = l.splat16(coefficients[0]);
        for &c in &coefficients[1..] {
            p = l.fma16(p, x, l.splat16(c));
        }
        p
    }

    /// The smaller one, or `b` if one is NaN.
    #[inline(always)]
    pub(crate) fn min<L: Lanes>(l: L, a: L::W, b: L::W) -> L::W {
        l.select_less16(a, b, a, b)
    }

    #[inline(always)]
    fn negative<L: Lanes>(l: L, x: L::W) -> L::W {
        l.mul16(x, l.splat16(-1.0))
    }

    /// `e^x`, within 2 ULP.
    #[inline(always)]
    pub(crate) fn exp<L: Lanes>(l: L, x: L::W) -> L::W {
        // For NaN and a number the result is the second operand, so NaN propagates.
        let x = l.max16(l.splat16(EXP_LO), min(l, l.splat16(EXP_HI), x));
        let n = l.round16(l.mul16(x, l.splat16(std::f32::consts::LOG2_E)));
        let r = l.fma16(n, l.splat16(-LN2_HI), x);
        let r = l.fma16(n, l.splat16(-LN2_LO), r);
        let y = l.fma16(poly(l, r, &EXP_POLY), l.mul16(r, r), r);
        let y = l.add16(y, l.splat16(1.0));
        let half = l.round16(l.mul16(n, l.splat16(0.5)));
        l.mul16(l.mul16(y, l.pow2_16(half)), l.pow2_16(l.sub16(n, half)))
    }

    /// The hyperbolic tangent, within 3 ULP.
    #[inline(always)]
    pub(crate) fn tanh<L: Lanes>(l: L, x: L::W) -> L::W {
        let one = l.splat16(1.0);
        let a = l.copysign16(x, one);
        let z = l.mul16(x, x);
        let near = l.fma16(l.mul16(poly(l, z, &TANH_POLY), z), x, x);
        let e = exp(l, l.add16(a, a));
        let far = l.sub16(one, l.div16(l.splat16(2.0), l.add16(e, one)));
        l.select_less16(a, l.splat16(TANH_SPLIT), near, l.copysign16(far, x))
    }

    /// `1 / (1 + e^-x)`, within 4 ULP; zero where the value is subnormal and `e^-x` infinite.
    #[inline(always)]
    pub(crate) fn sigmoid<L: Lanes>(l: L, x: L::W) -> L::W {
        let one = l.splat16(1.0);
        l.div16(one, l.add16(one, exp(l, negative(l, x))))
    }

    /// The error function, within 3 ULP.
    #[inline(always)]
    pub(crate) fn erf<L: Lanes>(l: L, x: L::W) -> L::W {
        let one = l.splat16(1.0);
        let a = l.copysign16(x, one);
        let near = l.fma16(poly(l, l.mul16(x, x), &ERF_POLY), x, x);
        let t = min(l, l.splat16(ERF_HI), a);
        let log = l.sub16(l.mul16(poly(l, t, &ERFC_POLY), t), t);
        let far = l.copysign16(l.sub16(one, exp(l, log)), x);
        l.select_less16(a, l.splat16(ERF_SPLIT), near, far)
    }
}

#[cfg(test)]
mod tests {
    use super::{erf, exp, exp_nonpositive, sigmoid, tanh};

    /// The error function by its Maclaurin series, or 1 - its continued fraction.
    fn erf_f64(x: f64) -> f64 {
        let a = x.abs();
        if a > 6.0 {
            return x.signum();
        }
        if a < 2.5 {
            let (mut term, mut sum) = (x, x);
            for n in 1..100 {
                term *= -x * x / f64::from(n);
                sum += term / f64::from(2 * n + 1);
            }
            return sum * std::f64::consts::FRAC_2_SQRT_PI;
        }
        let mut fraction = a;
        for k in (1..200).rev() {
            fraction = a + f64::from(k) / 2.0 / fraction;
        }
        let erfc = (-a * a).exp() / fraction / std::f64::consts::PI.sqrt();
        (1.0 - erfc).copysign(x)
    }

    /// Distance in units in the last place of the f32 nearest to `expected`.
    fn ulps(found: f32, expected: f64) -> f64 {
        let nearest = expected as f32;
        if found == nearest || (found.is_nan() && nearest.is_nan()) {
            return 0.0;
        }
        let magnitude = nearest.abs().clamp(f32::MIN_POSITIVE, f32::MAX);
        let ulp = f64::from(f32::from_bits(magnitude.to_bits() & 0x7f80_0000)) / f64::from(1 << 23);
        (f64::from(found) - expected).abs() / ulp
    }

    fn inputs() -> Vec<f32> {
        let mut x: Vec<f32> = (-230_000..230_000).map(|i| i as f32 * 5e-4).collect();
        x.extend((-200_000..200_000).map(|i| i as f32 * 2e-5));
        x.extend((0..150).flat_map(|e| [2f32.powi(-e), -(2f32.powi(-e))]));
        x.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN]);
        x.extend([88.722_83, 88.722_84, 88.73, 1e4, -87.33, -103.9, -104.0, -1e4]);
        x
    }

    fn check(name: &str, bound: f64, f: impl Fn(f32) -> f32, expected: impl Fn(f64) -> f64) {
        let mut worst = (0.0, 0.0);
        for x in inputs() {
            let error = ulps(f(x), expected(f64::from(x)));
            assert!(!error.is_nan(), "{name}({x}) = {}", f(x));
            if error > worst.0 {
                worst = (error, x);
            }
        }
        assert!(worst.0 <= bound, "{name}: {} ULP at {}", worst.0, worst.1);
    }

    fn sigmoid_f64(x: f64) -> f64 {
        if x < -88.7228 {
            return 0.0;
        }
        1.0 / (1.0 + (-x).exp())
    }

    #[test]
    fn scalar_functions_keep_their_bounds() {
        check("exp", 2.0, exp, f64::exp);
        check("tanh", 3.0, tanh, f64::tanh);
        check("sigmoid", 4.0, sigmoid, sigmoid_f64);
        check("erf", 3.0, erf, erf_f64);
    }

    #[test]
    fn exponentials_below_zero_keep_their_bound() {
        let exp_f64 = |x: f64| if x <= -87.0 { 0.0 } else { x.exp() };
        let negative = |x: f32| if x.is_nan() { 0.0 } else { -x.abs() };
        let f = |x: f32| exp_nonpositive(negative(x));
        check("exp_nonpositive", 2.0, f, |x| exp_f64(f64::from(negative(x as f32))));
        assert_eq!(exp_nonpositive(0.0), 1.0);
        assert_eq!(exp_nonpositive(f32::NEG_INFINITY), 0.0);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn vector_functions_keep_their_bounds() {
        use super::vector;
        use crate::Tier;
        use crate::lanes::{Kernel, Lanes, dispatch};

        /// One lane of a function.
        struct One(&'static str, f32);

        impl Kernel for One {
            type Output = f32;

            #[inline(always)]
            fn run<L: Lanes>(self, l: L) -> f32 {
                let mut out = [0.0; 16];
                let x = l.splat16(self.1);
                let y = match self.0 {
                    "exp" => vector::exp(l, x),
                    "tanh" => vector::tanh(l, x),
                    "sigmoid" => vector::sigmoid(l, x),
                    "erf" => vector::erf(l, x),
                    name => unreachable!("{name}"),
                };
                l.store16(y, &mut out);
                out[0]
            }
        }

        for tier in Tier::available() {
            let one = |name| move |x| dispatch(tier, One(name, x));
            check("exp", 2.0, one("exp"), f64::exp);
            check("tanh", 3.0, one("tanh"), f64::tanh);
            check("sigmoid", 4.0, one("sigmoid"), sigmoid_f64);
            check("erf", 3.0, one("erf"), erf_f64);
        }
    }

    #[test]
    fn limits_are_exact() {
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(0.0), 1.0);
        assert_eq!((tanh(f32::INFINITY), tanh(f32::NEG_INFINITY)), (1.0, -1.0));
        assert_eq!((sigmoid(f32::INFINITY), sigmoid(f32::NEG_INFINITY)), (1.0, 0.0));
        assert_eq!((erf(f32::INFINITY), erf(f32::NEG_INFINITY)), (1.0, -1.0));
    }
}
