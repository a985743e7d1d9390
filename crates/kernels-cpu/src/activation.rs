//! Activation functions, alone and as the gate of a gated feed-forward layer.

use crate::elementwise::for_each_piece;
#[cfg(target_arch = "x86_64")]
use crate::lanes;
use crate::quantize::QuantizedRowMut;
use crate::{Activation, QuantizedRows, Rows, RowsMut, Team, Tier, math};

/// sqrt(2 / pi), the slope inside the tanh form of GELU.
const GELU_SLOPE: f32 = 0.797_884_6;
/// The cubic term of the tanh form of GELU.
const GELU_CUBIC: f32 = 0.044_715;
/// The slope of the quick form of GELU.
const GELU_QUICK: f32 = 1.702;
/// `mish(x)` equals `x` in f32 from here on.
const MISH_HI: f32 = 20.0;

/// The activation of one value.
#[inline]
fn apply(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => x * math::sigmoid(x),
        Activation::Gelu => 0.5 * x * (1.0 + math::erf(x * std::f32::consts::FRAC_1_SQRT_2)),
        // (1 + tanh u) / 2 is sigmoid(2 u).
        Activation::GeluTanh => {
            x * math::sigmoid(2.0 * GELU_SLOPE * (x + GELU_CUBIC * (x * x) * x))
        }
        Activation::GeluQuick => x * math::sigmoid(GELU_QUICK * x),
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0) * x.max(0.0),
        Activation::Tanh => math::tanh(x),
        Activation::Sigmoid => math::sigmoid(x),
        Activation::Mish => {
            // tanh(ln(1 + e)) is e (e + 2) / (e (e + 2) + 2).
            let e = math::exp(x.min(MISH_HI));
            let n = e * (e + 2.0);
            x * (n / (n + 2.0))
        }
    }
}

/// `x = activation(x)`.
pub fn activate_in_place(team: &Team, tier: Tier, activation: Activation, x: RowsMut<'_>) {
    for_each_piece(team, x, |_row, _col, x| activate_row(tier, activation, x));
}

/// `out = activation(x)`, both of one shape.
pub fn activate(team: &Team, tier: Tier, activation: Activation, x: Rows<'_>, out: RowsMut<'_>) {
    assert_eq!((x.n_rows(), x.n_cols()), (out.n_rows(), out.n_cols()), "shape of the result");
    for_each_piece(team, out, |row, col, out| {
        out.copy_from_slice(&x.row(row)[col..col + out.len()]);
        activate_row(tier, activation, out);
    });
}

/// `out = activation(gate) * up`, all of one shape. `gate` and `up` may be halves of one matrix.
pub fn gated(
    team: &Team,
    tier: Tier,
    activation: Activation,
    gate: Rows<'_>,   // [n_rows, hidden_dim]
    up: Rows<'_>,     // [n_rows, hidden_dim]
    out: RowsMut<'_>, // [n_rows, hidden_dim]
) {
    let shape = (out.n_rows(), out.n_cols());
    assert_eq!((gate.n_rows(), gate.n_cols()), shape, "shape of the gate");
    assert_eq!((up.n_rows(), up.n_cols()), shape, "shape of the gated operand");
    for_each_piece(team, out, |row, col, out| {
        let cols = col..col + out.len();
        gated_row(tier, activation, &gate.row(row)[cols.clone()], &up.row(row)[cols], out);
    });
}

/// Quantizes `activation(x)` for the rows that have one plane in `out`, which the caller has
/// [arranged](QuantizedRows::arrange). The bytes are those of [`activate`] followed by
/// [`QuantizedRows::quantize`].
///
/// # Panics
/// If `out` is arranged for another shape.
pub fn activate_quantize(
    team: &Team,
    tier: Tier,
    activation: Activation,
    x: Rows<'_>, // [n_rows, hidden_dim]
    out: &mut QuantizedRows,
) {
    out.assert_arranged(x);
    out.fill(team, |i, mut out| {
        quantize_row(tier, activation, x.row(i), None, &mut out);
    });
}

/// Quantizes `activation(gate) * up` for the rows that have one plane in `out`, which the caller has
/// [arranged](QuantizedRows::arrange). The bytes are those of [`gated`] followed by
/// [`QuantizedRows::quantize`].
///
/// # Panics
/// If the shapes differ, or `out` is arranged for another.
pub fn gated_quantize(
    team: &Team,
    tier: Tier,
    activation: Activation,
    gate: Rows<'_>, // [n_rows, hidden_dim]
    up: Rows<'_>,   // [n_rows, hidden_dim]
    out: &mut QuantizedRows,
) {
    let shape = (gate.n_rows(), gate.n_cols());
    assert_eq!((up.n_rows(), up.n_cols()), shape, "shape of the gated operand");
    out.assert_arranged(gate);
    out.fill(team, |i, mut out| {
        quantize_row(tier, activation, gate.row(i), Some(up.row(i)), &mut out);
    });
}

/// Quantizes `activation(x)`, times `up` if there is one.
fn quantize_row(
    tier: Tier,
    activation: Activation,
    x: &[f32],
    up: Option<&[f32]>,
    out: &mut QuantizedRowMut<'_>,
) {
    out.produce(tier, 0, x.len(), |cols, out| match up {
        Some(up) => gated_row(tier, activation, &x[cols.clone()], &up[cols], out),
        None => {
            out.copy_from_slice(&x[cols]);
            activate_row(tier, activation, out);
        }
    });
}

/// `x = activation(x)` on one row.
pub fn activate_row(tier: Tier, activation: Activation, x: &mut [f32]) {
    match tier.avx2() {
        None => x.iter_mut().for_each(|x| *x = apply(activation, *x)),
        #[cfg(target_arch = "x86_64")]
        Some(_) => lanes::dispatch(tier, vector::Activate { activation, x }),
    }
}

/// `out = activation(gate) * up` on one row.
///
/// # Panics
/// If the lengths differ.
pub fn gated_row(tier: Tier, activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert!(gate.len() == out.len() && up.len() == out.len(), "lengths of a gated row");
    match tier.avx2() {
        None => {
            for ((out, &gate), up) in out.iter_mut().zip(gate).zip(up) {
                *out = apply(activation, gate) * up;
            }
        }
        #[cfg(target_arch = "x86_64")]
        Some(_) => lanes::dispatch(tier, vector::Gated { activation, gate, up, out }),
    }
}

/// Vector twins of the scalar loops, sixteen elements at a time.
#[cfg(target_arch = "x86_64")]
mod vector {
    use super::{Activation, GELU_CUBIC, GELU_QUICK, GELU_SLOPE, MISH_HI};
    use crate::lanes::{Kernel, Lanes, load_from, store_to};
    use crate::math::vector::{erf, exp, min, sigmoid, tanh};

    /// Expands `$run!(f)` for each activation, where `f` is its function on sixteen lanes, so that each has
    /// a loop of its own.
    macro_rules! with_activation {
        ($activation:expr, $run:ident) => {
            match $activation {
                Activation::Silu => $run!(silu),
                Activation::Gelu => $run!(gelu),
                Activation::GeluTanh => $run!(gelu_tanh),
                Activation::GeluQuick => $run!(gelu_quick),
                Activation::Relu => $run!(relu),
                Activation::ReluSquared => $run!(relu_squared),
                Activation::Tanh => $run!(tanh),
                Activation::Sigmoid => $run!(sigmoid),
                Activation::Mish => $run!(mish),
            }
        };
    }

    /// `x = activation(x)`.
    pub(super) struct Activate<'a> {
        pub(super) activation: Activation,
        pub(super) x: &'a mut [f32],
    }

    impl Kernel for Activate<'_> {
        type Output = ();

        #[inline(always)]
        fn run<L: Lanes>(self, l: L) {
            let Self { activation, x } = self;
            macro_rules! run {
                ($f:ident) => {
                    for at in (0..x.len()).step_by(16) {
                        let y = $f(l, load_from(l, x, at));
                        store_to(l, y, x, at);
                    }
                };
            }
            with_activation!(activation, run);
        }
    }

    /// `out = activation(gate) * up`.
    pub(super) struct Gated<'a> {
        pub(super) activation: Activation,
        pub(super) gate: &'a [f32],
        pub(super) up: &'a [f32],      // as long as the gate
        pub(super) out: &'a mut [f32], // as long as the gate
    }

    impl Kernel for Gated<'_> {
        type Output = ();

        #[inline(always)]
        fn run<L: Lanes>(self, l: L) {
            let Self { activation, gate, up, out } = self;
            macro_rules! run {
                ($f:ident) => {
                    for at in (0..out.len()).step_by(16) {
                        let y = $f(l, load_from(l, gate, at));
                        store_to(l, l.mul16(y, load_from(l, up, at)), out, at);
                    }
                };
            }
            with_activation!(activation, run);
        }
    }

    #[inline(always)]
    fn silu<L: Lanes>(l: L, x: L::W) -> L::W {
        l.mul16(x, sigmoid(l, x))
    }

    #[inline(always)]
    fn gelu<L: Lanes>(l: L, x: L::W) -> L::W {
        let erf = erf(l, l.mul16(x, l.splat16(std::f32::consts::FRAC_1_SQRT_2)));
        l.mul16(l.mul16(l.splat16(0.5), x), l.add16(l.splat16(1.0), erf))
    }

    #[inline(always)]
    fn gelu_tanh<L: Lanes>(l: L, x: L::W) -> L::W {
        let cubic = l.mul16(l.splat16(GELU_CUBIC), l.mul16(x, x));
        let u = l.fma16(cubic, x, x);
        l.mul16(x, sigmoid(l, l.mul16(l.splat16(2.0 * GELU_SLOPE), u)))
    }

    #[inline(always)]
    fn gelu_quick<L: Lanes>(l: L, x: L::W) -> L::W {
        l.mul16(x, sigmoid(l, l.mul16(l.splat16(GELU_QUICK), x)))
    }

    #[inline(always)]
    fn relu<L: Lanes>(l: L, x: L::W) -> L::W {
        l.max16(x, l.splat16(0.0))
    }

    #[inline(always)]
    fn relu_squared<L: Lanes>(l: L, x: L::W) -> L::W {
        let y = relu(l, x);
        l.mul16(y, y)
    }

    #[inline(always)]
    fn mish<L: Lanes>(l: L, x: L::W) -> L::W {
        let two = l.splat16(2.0);
        let e = exp(l, min(l, x, l.splat16(MISH_HI)));
        let n = l.mul16(e, l.add16(e, two));
        l.mul16(x, l.div16(n, l.add16(n, two)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both forms of GELU and the rest from their definitions; the integral form
    /// of erf by Simpson's rule.
    fn expected(activation: Activation, x: f64) -> f64 {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let erf = |x: f64| {
            let x = x.clamp(-6.0, 6.0);
            let (n, h) = (2000, x / 2000.0);
            let f = |i: i32| (-(f64::from(i) * h).powi(2)).exp();
            let inner: f64 = (1..n).map(|i| f(i) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
            (f(0) + f(n) + inner) * h / 3.0 * std::f64::consts::FRAC_2_SQRT_PI
        };
        match activation {
            Activation::Silu => x * sigmoid(x),
            Activation::Gelu => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
            Activation::GeluTanh => {
                let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                0.5 * x * (1.0 + u.tanh())
            }
            Activation::GeluQuick => x * sigmoid(1.702 * x),
            Activation::Relu => x.max(0.0),
            Activation::ReluSquared => x.max(0.0).powi(2),
            Activation::Tanh => x.tanh(),
            Activation::Sigmoid => sigmoid(x),
            Activation::Mish => x * x.exp().ln_1p().tanh(),
        }
    }

    #[test]
    fn every_activation_matches_f64() {
        let n = 1003;
        let inputs: Vec<f32> = (0..n).map(|i| (i as f32 - 500.0) * 0.025).collect();
        for tier in Tier::available() {
            for activation in Activation::ALL {
                let mut x = inputs.clone();
                activate_in_place(&Team::new(2), tier, activation, RowsMut::new(&mut x, 1, n));
                let mut y = vec![0.0; n];
                let view = RowsMut::new(&mut y, 1, n);
                activate(&Team::new(1), tier, activation, Rows::new(&inputs, 1, n), view);
                assert_eq!(x, y, "{tier} {activation:?}");
                for (&x, &input) in x.iter().zip(&inputs) {
                    let e = expected(activation, f64::from(input));
                    let error = (f64::from(x) - e).abs();
                    assert!(error <= 6e-7 + 6e-7 * e.abs(), "{tier} {activation:?}({input}) = {x}");
                }
            }
        }
    }

    #[test]
    fn quantized_results_have_the_bytes_of_the_two_steps() {
        let (n_rows, n) = (9, 1056);
        let mut seed = 3;
        let both = crate::testing::random(&mut seed, n_rows * 2 * n);
        let both = Rows::new(&both, n_rows, 2 * n);
        let (gate, up) = (both.slice_cols(0..n), both.slice_cols(n..2 * n));
        let team = Team::new(2);
        let mut fused = QuantizedRows::with_capacity(n_rows, n);
        let mut apart = QuantizedRows::with_capacity(n_rows, n);
        for tier in Tier::available() {
            for activation in Activation::ALL {
                let mut y = vec![0.0; n_rows * n];
                gated(&team, tier, activation, gate, up, RowsMut::new(&mut y, n_rows, n));
                apart.quantize(&team, tier, Rows::new(&y, n_rows, n));
                fused.arrange(n_rows, n, &[]);
                gated_quantize(&team, tier, activation, gate, up, &mut fused);
                fused.assert_same_bytes(&apart);

                activate(&team, tier, activation, gate, RowsMut::new(&mut y, n_rows, n));
                apart.quantize(&team, tier, Rows::new(&y, n_rows, n));
                activate_quantize(&team, tier, activation, gate, &mut fused);
                fused.assert_same_bytes(&apart);
            }
        }
    }

    #[test]
    fn gates_multiply_halves_of_one_matrix() {
        let (n_rows, n) = (7, 1029);
        let both: Vec<f32> =
            (0..n_rows * 2 * n).map(|i| ((i * 31) % 1601) as f32 / 200.0 - 4.0).collect();
        let both = Rows::new(&both, n_rows, 2 * n);
        for tier in Tier::available() {
            for activation in Activation::ALL {
                let (gate, up) = (both.slice_cols(0..n), both.slice_cols(n..2 * n));
                let mut out = vec![0.0; n_rows * n];
                let team = Team::new(3);
                gated(&team, tier, activation, gate, up, RowsMut::new(&mut out, n_rows, n));
                for i in 0..n_rows {
                    let mut row = gate.row(i).to_vec();
                    activate_row(tier, activation, &mut row);
                    row.iter_mut().zip(up.row(i)).for_each(|(x, up)| *x *= up);
                    assert_eq!(row, out[i * n..][..n], "{tier} {activation:?}");
                }
            }
        }
    }
}
