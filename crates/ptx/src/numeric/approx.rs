//! Approximate instructions: the F32 number nearest to the exact result, with the special cases that PTX documents.
//!
//! Results of a GPU are within the documented error of these, but which number within it is not documented, so tests
//! must not depend on the last bits.

/// `ex2.approx`: two to the power of `x`.
pub(crate) fn ex2(x: f32) -> f32 {
    f64::from(x).exp2() as f32
}

/// `lg2.approx`: the binary logarithm; NaN for negative numbers.
pub(crate) fn lg2(x: f32) -> f32 {
    f64::from(x).log2() as f32
}

/// `rcp.approx`.
pub(crate) fn rcp(x: f32) -> f32 {
    1.0 / x
}

/// `rsqrt.approx`.
pub(crate) fn rsqrt(x: f32) -> f32 {
    if x == 0.0 {
        return f32::INFINITY.copysign(x);
    }
    (1.0 / f64::from(x).sqrt()) as f32
}

/// `sqrt.approx`.
pub(crate) fn sqrt(x: f32) -> f32 {
    x.sqrt()
}

/// `sin.approx`, of radians.
pub(crate) fn sin(x: f32) -> f32 {
    f64::from(x).sin() as f32
}

/// `cos.approx`, of radians.
pub(crate) fn cos(x: f32) -> f32 {
    f64::from(x).cos() as f32
}

/// `tanh.approx`.
pub(crate) fn tanh(x: f32) -> f32 {
    f64::from(x).tanh() as f32
}

/// `div.approx`: a divisor above 2^126 gives 0, or NaN for an infinite dividend.
pub(crate) fn div(a: f32, b: f32) -> f32 {
    let is_huge = b.abs() > 2f32.powi(126) && b.is_finite();
    match (is_huge, a.is_infinite()) {
        (true, true) => f32::NAN,
        (true, false) => 0.0f32.copysign(a) * 1.0f32.copysign(b),
        _ => a / b,
    }
}
