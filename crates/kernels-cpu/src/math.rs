//! `exp`, `tanh`, `sigmoid` and `erf` in f32: scalar functions and their
//! eight-lane AVX2 twins.
//!
//! Both forms use the same reductions and polynomials; the AVX2 form fuses
//! multiply and add, so the two may differ within the stated bounds. Against
//! f64, in units in the last place of the f32 result (or the smallest normal
//! f32 where the result is below it): `exp` 2, `tanh` 3, `sigmoid` 4, `erf` 3.
//! `sigmoid` is zero below -88.7, where its value is subnormal. All take
//! infinities to their limits and NaN to NaN.

/// Added to and taken from a small value, it leaves the nearest integer, ties to even.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
/// From here on `exp` is infinite, and below the other end it is zero.
const EXP_HI: f32 = 89.0;
const EXP_LO: f32 = -104.0;
/// ln 2 as a short value, whose products with exponents are exact, and a rest.
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
/// From here on `erf` rounds to one.
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
    // Two factors of half the exponent reach both ends of the range. Of NaN the exponent is
    // nonsense, but the product is still NaN.
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed();
    let pow2 = |n: i32| f32::from_bits(n.wrapping_add(127).cast_unsigned() << 23);
    y * pow2(n >> 1) * pow2(n.wrapping_sub(n >> 1))
}

/// `e^x` for `x` of at most zero, within 2 ULP, and zero from -87 down. It takes fewer
/// steps than [`exp`], as its exponents need no two factors.
#[inline(always)]
pub fn exp_nonpositive(x: f32) -> f32 {
    const LO: f32 = -87.0;
    // The exponent's bias is part of what is added for rounding.
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

/// The eight-lane twins.
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2 {
    use std::arch::x86_64::{
        __m256, __m256i, _CMP_LT_OQ, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT,
        _mm256_add_epi32, _mm256_add_ps, _mm256_and_ps, _mm256_andnot_ps, _mm256_blendv_ps,
        _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_cvtps_epi32, _mm256_div_ps, _mm256_fmadd_ps,
        _mm256_fnmadd_ps, _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps, _mm256_or_ps,
        _mm256_round_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_slli_epi32, _mm256_srai_epi32,
        _mm256_sub_epi32, _mm256_sub_ps, _mm256_xor_ps,
    };

    use super::{
        ERF_HI, ERF_POLY, ERF_SPLIT, ERFC_POLY, EXP_HI, EXP_LO, EXP_POLY, LN2_HI, LN2_LO,
        TANH_POLY, TANH_SPLIT,
    };

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn poly<const N: usize>(x: __m256, coefficients: &[f32; N]) -> __m256 {
        let mut p = _mm256_set1_ps(coefficients[0]);
        for &c in &coefficients[1..] {
            p = _mm256_fmadd_ps(p, x, _mm256_set1_ps(c));
        }
        p
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn pow2(n: __m256i) -> __m256 {
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127))))
    }

    /// `e^x`, within 2 ULP.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) fn exp(x: __m256) -> __m256 {
        // Min and max return their second operand on NaN, so a NaN passes.
        let x = _mm256_min_ps(_mm256_set1_ps(EXP_HI), x);
        let x = _mm256_max_ps(_mm256_set1_ps(EXP_LO), x);
        let n = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(
            _mm256_mul_ps(x, _mm256_set1_ps(std::f32::consts::LOG2_E)),
        );
        let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LN2_HI), x);
        let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LN2_LO), r);
        let y = _mm256_fmadd_ps(poly(r, &EXP_POLY), _mm256_mul_ps(r, r), r);
        let y = _mm256_add_ps(y, _mm256_set1_ps(1.0));
        let n = _mm256_cvtps_epi32(n);
        let half = _mm256_srai_epi32::<1>(n);
        _mm256_mul_ps(_mm256_mul_ps(y, pow2(half)), pow2(_mm256_sub_epi32(n, half)))
    }

    /// The hyperbolic tangent, within 3 ULP.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) fn tanh(x: __m256) -> __m256 {
        let sign = _mm256_and_ps(x, _mm256_set1_ps(-0.0));
        let a = _mm256_andnot_ps(_mm256_set1_ps(-0.0), x);
        let one = _mm256_set1_ps(1.0);
        let z = _mm256_mul_ps(x, x);
        let near = _mm256_fmadd_ps(_mm256_mul_ps(poly(z, &TANH_POLY), z), x, x);
        let e = exp(_mm256_add_ps(a, a));
        let far = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0), _mm256_add_ps(e, one)));
        let far = _mm256_or_ps(far, sign);
        let is_near = _mm256_cmp_ps::<_CMP_LT_OQ>(a, _mm256_set1_ps(TANH_SPLIT));
        _mm256_blendv_ps(far, near, is_near)
    }

    /// `1 / (1 + e^-x)`, within 4 ULP; zero where the value is subnormal and `e^-x` infinite.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) fn sigmoid(x: __m256) -> __m256 {
        let one = _mm256_set1_ps(1.0);
        let e = exp(_mm256_xor_ps(x, _mm256_set1_ps(-0.0)));
        _mm256_div_ps(one, _mm256_add_ps(one, e))
    }

    /// The error function, within 3 ULP.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) fn erf(x: __m256) -> __m256 {
        let sign = _mm256_and_ps(x, _mm256_set1_ps(-0.0));
        let a = _mm256_andnot_ps(_mm256_set1_ps(-0.0), x);
        let near = _mm256_fmadd_ps(poly(_mm256_mul_ps(x, x), &ERF_POLY), x, x);
        let t = _mm256_min_ps(_mm256_set1_ps(ERF_HI), a);
        let log = _mm256_sub_ps(_mm256_mul_ps(poly(t, &ERFC_POLY), t), t);
        let far = _mm256_or_ps(_mm256_sub_ps(_mm256_set1_ps(1.0), exp(log)), sign);
        let is_near = _mm256_cmp_ps::<_CMP_LT_OQ>(a, _mm256_set1_ps(ERF_SPLIT));
        _mm256_blendv_ps(far, near, is_near)
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
    fn avx2_functions_keep_their_bounds() {
        use crate::lanes::{load, store};

        macro_rules! one_lane {
            ($name:ident) => {{
                #[target_feature(enable = "avx2,fma,f16c")]
                fn lane(x: f32) -> f32 {
                    let mut out = [0.0; 8];
                    store(super::avx2::$name(load(&[x; 8])), &mut out);
                    out[0]
                }
                // SAFETY: the detection at the head of this test.
                |x| unsafe { lane(x) }
            }};
        }

        let found = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        if !found {
            println!("skipped: this CPU has no AVX2");
            return;
        }
        check("exp", 2.0, one_lane!(exp), f64::exp);
        check("tanh", 3.0, one_lane!(tanh), f64::tanh);
        check("sigmoid", 4.0, one_lane!(sigmoid), sigmoid_f64);
        check("erf", 3.0, one_lane!(erf), erf_f64);
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
