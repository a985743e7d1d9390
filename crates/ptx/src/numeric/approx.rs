//! Approximate instructions: the nearest F32 to the exact result, with the limits that PTX documents.
//!
//! A card's own results lie within the documented error of these; which of the numbers within it a
//! card gives is not documented, so no test may depend on their last bits.

/// `ex2.approx`: two to the power of `x`.
pub(crate) fn ex2(x: f32) -> f32 {
    f64::from(x).exp2() as f32
}

/// `lg2.approx`: the binary logarithm; of a negative number NaN.
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

/// `div.approx`: a divisor above 2^126 makes the quotient 0, or NaN of infinity.
pub(crate) fn div(a: f32, b: f32) -> f32 {
    let is_huge = b.abs() > 2f32.powi(126) && b.is_finite();
    match (is_huge, a.is_infinite()) {
        (true, true) => f32::NAN,
        (true, false) => 0.0f32.copysign(a) * 1.0f32.copysign(b),
        _ => a / b,
    }
}
