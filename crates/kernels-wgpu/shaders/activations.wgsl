// Activations, by their index in Activation::ALL.

// The exponentials of tanh overflow for large arguments; beyond 20 the result is 1 in f32.
fn safe_tanh(x: f32) -> f32 {
    return tanh(clamp(x, -20.0, 20.0));
}

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(-clamp(x, -80.0, 80.0)));
}

// Abramowitz and Stegun 7.1.26 has an absolute error of 1e-7, which is too large for small results, so
// small arguments use the series (7.1.5).
fn erf(x: f32) -> f32 {
    let z = abs(x);
    if z < 1.0 {
        let s = x * x;
        var sum = 1.0 / 6894720.0;
        sum = fma(-s, sum, 1.0 / 685440.0);
        sum = fma(-s, sum, 1.0 / 75600.0);
        sum = fma(-s, sum, 1.0 / 9360.0);
        sum = fma(-s, sum, 1.0 / 1320.0);
        sum = fma(-s, sum, 1.0 / 216.0);
        sum = fma(-s, sum, 1.0 / 42.0);
        sum = fma(-s, sum, 1.0 / 10.0);
        sum = fma(-s, sum, 1.0 / 3.0);
        sum = fma(-s, sum, 1.0);
        return 1.1283791670955126 * x * sum;
    }
    let t = 1.0 / fma(0.3275911, z, 1.0);
    var p = fma(t, 1.061405429, -1.453152027);
    p = fma(t, p, 1.421413741);
    p = fma(t, p, -0.284496736);
    p = fma(t, p, 0.254829592);
    return sign(x) * (1.0 - p * t * exp(-z * z));
}

// tanh(ln(1 + e)) is e (e + 2) / (e (e + 2) + 2); beyond 20 it is 1 in f32.
fn mish(x: f32) -> f32 {
    let e = exp(clamp(x, -80.0, 20.0));
    let n = e * (e + 2.0);
    return x * (n / (n + 2.0));
}

fn activation(act: u32, x: f32) -> f32 {
    switch act {
        case 0u: { return x * sigmoid(x); }
        case 1u: { return 0.5 * x * (1.0 + erf(x * 0.7071067811865476)); }
        case 2u: { return x * sigmoid(1.5957691216057308 * fma(0.044715 * x * x, x, x)); }
        case 3u: { return x * sigmoid(1.702 * x); }
        case 4u: { return max(x, 0.0); }
        case 5u: { return max(x, 0.0) * max(x, 0.0); }
        case 6u: { return safe_tanh(x); }
        case 7u: { return sigmoid(x); }
        default: { return mish(x); }
    }
}

