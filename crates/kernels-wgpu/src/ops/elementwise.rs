//! Elementwise operations on rows: activations, sums, products, scaling, soft caps, clamps.

use crate::dispatch::shader::{Access, Shader};
use crate::dispatch::{Grid, Kernel, Rows, View};
use crate::{Error, Gpu};
use realizar_types::Activation;

/// An operation on each element.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Elementwise {
    /// `activation(x)`.
    Act(Activation),
    /// `activation(x) * y`.
    Gated(Activation),
    /// `x + y`.
    Add,
    /// `x * y`.
    Mul,
    /// `x` times a constant.
    Scale(f32),
    /// `cap * tanh(x / cap)`.
    Softcap(f32),
    /// `min(max(x, min), max)`.
    Clamp {
        /// The lower bound.
        min: f32,
        /// The upper bound; at least `min`.
        max: f32,
    },
}

impl Elementwise {
    /// The operation's index in the shader, and its constants.
    fn code(self) -> (u32, [f32; 2]) {
        match self {
            Self::Act(act) => (act as u32, [0.0; 2]),
            Self::Gated(act) => (act as u32 + 16, [0.0; 2]),
            Self::Add => (32, [0.0; 2]),
            Self::Scale(factor) => (33, [factor, 0.0]),
            Self::Softcap(cap) => (34, [cap, 0.0]),
            Self::Clamp { min, max } => (35, [min, max]),
            Self::Mul => (36, [0.0; 2]),
        }
    }
}

/// The shader part with the activations.
pub(crate) const ACTIVATIONS: &str = include_str!("../../shaders/activations.wgsl");

/// Invocations per workgroup; each computes one element.
const WORKGROUP: u32 = 64;

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    width: u32,
    rows_at: u32,
    constants: [f32; 2],
    x: [u32; 2], // start, stride
    y: [u32; 2],
    out: [u32; 2],
}

fn shader(code: u32) -> Shader {
    Shader {
        name: "elementwise".into(),
        parts: vec![ACTIVATIONS, include_str!("../../shaders/elementwise.wgsl")],
        bindings: &[Access::Read, Access::ReadWrite],
        constants: vec![("op", f64::from(code))],
    }
}

pub(crate) fn shaders() -> Vec<Shader> {
    vec![shader(0)]
}

/// `out = op(x, y)` on rows of one width. Only operations with two operands read `y`. `out` may be `x`.
///
/// # Errors
/// If the device refuses the kernel.
pub fn elementwise(
    gpu: &Gpu,
    rows: Rows<'_>,
    op: Elementwise,
    x: View,
    y: View,
    out: View,
) -> Result<Kernel, Error> {
    assert!(x.width == out.width && y.width == out.width, "widths {x:?} {y:?} {out:?}");
    if let Elementwise::Clamp { min, max } = op {
        assert!(min <= max, "a clamp to {min}..{max}");
    }
    let (code, constants) = op.code();
    let params = Params {
        width: out.width,
        rows_at: rows.at.0,
        constants,
        x: [x.start, x.stride],
        y: [y.start, y.stride],
        out: [out.start, out.stride],
    };
    let grid = Grid { x: out.width.div_ceil(WORKGROUP), rows: 1, z: 1 };
    gpu.kernel(&shader(code), &params, &[rows.batch, rows.values], grid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Bench};

    /// Against f64.
    fn reference(op: Elementwise, x: f64, y: f64) -> f64 {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let act = |act: Activation, x: f64| match act {
            Activation::Silu => x * sigmoid(x),
            Activation::Gelu => 0.5 * x * (1.0 + testing::erf(x / 2f64.sqrt())),
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
        };
        match op {
            Elementwise::Act(a) => act(a, x),
            Elementwise::Gated(a) => act(a, x) * y,
            Elementwise::Add => x + y,
            Elementwise::Mul => x * y,
            Elementwise::Scale(f) => x * f64::from(f),
            Elementwise::Softcap(cap) => f64::from(cap) * (x / f64::from(cap)).tanh(),
            Elementwise::Clamp { min, max } => x.clamp(f64::from(min), f64::from(max)),
        }
    }

    #[test]
    fn every_operation_on_every_device() {
        let acts = Activation::ALL.into_iter();
        let others = [
            Elementwise::Add,
            Elementwise::Mul,
            Elementwise::Scale(-2.5),
            Elementwise::Softcap(30.0),
            Elementwise::Clamp { min: -3.25, max: 1.5 },
        ];
        let ops = others
            .into_iter()
            .chain(acts.clone().map(Elementwise::Act))
            .chain(acts.map(Elementwise::Gated));
        let ops: Vec<Elementwise> = ops.collect();
        let (n_rows, width) = (3, 101);
        let Some(gpu) = testing::gpu() else { return };
        for &op in &ops {
            // x in columns 2.. of rows of 110, y and out dense after them.
            let x = View { start: 2, stride: 110, width };
            let (y, out) = (View::dense(330, width), View::dense(330 + 3 * width, width));
            let n = (out.start + n_rows * width) as usize;
            let mut values: Vec<f32> =
                (0..n).map(|i| ((i * 37) % 211) as f32 / 10.0 - 10.5).collect();
            // Arguments where a form with exponentials overflows.
            (values[2], values[3]) = (95.0, -95.0);
            let bench = Bench::new(&gpu, &values, &[0, n_rows]);
            let kernel = elementwise(&gpu, bench.rows(0), op, x, y, out).unwrap();
            let found = bench.run(&[(&kernel, n_rows)]);
            for r in 0..n_rows {
                for c in 0..width {
                    let at = |v: View| (v.start + r * v.stride + c) as usize;
                    let wanted = reference(op, f64::from(values[at(x)]), f64::from(values[at(y)]));
                    let apart = (f64::from(found[at(out)]) - wanted).abs();
                    let bound = 4e-6 * wanted.abs().max(1.0);
                    assert!(apart <= bound, "{op:?} of {}: {apart:e}", values[at(x)]);
                }
            }
        }
    }
}
