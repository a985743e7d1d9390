//! Causal depthwise convolutions over a few positions.
//!
//! The state of a sequence is the last `n_taps - 1` input rows, oldest first. An element is computed from the
//! input alone, so the bits do not depend on how the sequence is cut into steps.

use crate::dispatch::shader::{Access, Shader};
use crate::dispatch::{Grid, Kernel, Rows, View};
use crate::ops::elementwise::ACTIVATIONS;
use crate::storage::{StateLayer, StateLists};
use crate::{Buffer, Error, Gpu};
use realizar_types::Activation;

/// Invocations per workgroup; each computes one element.
const WORKGROUP: u32 = 64;

/// A depthwise convolution with `n_taps` weights per channel:
/// `out[t][c] = act(bias[c] + Σ w[i][c] * x[t - n_taps + 1 + i][c])`, with zeros before the first row.
#[derive(Debug, Clone, Copy)]
pub struct ShortConv<'a> {
    /// Weights and biases, f32.
    pub vectors: &'a Buffer,
    /// Index in `vectors` of the weights, `[n_taps, channels]`, of the oldest row first.
    pub taps: u32,
    /// Number of positions that an element depends on.
    pub n_taps: u32,
    /// Index in `vectors` of the channels' biases.
    pub bias: Option<u32>,
    /// Applied to every element.
    pub act: Option<Activation>,
    /// Input rows with one column per channel.
    pub x: View,
    /// The result, with the width of `x`; must not overlap `x`.
    pub out: View,
    /// The states, of `(n_taps - 1) * channels` elements.
    pub states: &'a StateLayer,
    /// Indices of the step's words about the states.
    pub lists: StateLists,
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    width: u32,
    n_taps: u32,
    rows_at: u32,
    seq_of_row_at: u32,
    seqs_at: u32,
    writes_at: u32,
    taps: u32,
    bias: u32,
    x: [u32; 2], // start, stride
    out: [u32; 2],
}

/// The index of an absent vector.
const NO_VECTOR: u32 = u32::MAX;
/// The index of no activation.
const NO_ACT: u32 = 255;

fn shader(act: Option<Activation>) -> Shader {
    let act = act.map_or(NO_ACT, |act| act as u32);
    Shader {
        name: "short_conv".into(),
        parts: vec![ACTIVATIONS, include_str!("../../shaders/recurrent/short_conv.wgsl")],
        bindings: &[Access::Read, Access::Read, Access::ReadWrite, Access::ReadWrite],
        constants: vec![("act", f64::from(act))],
    }
}

pub(crate) fn shaders() -> Vec<Shader> {
    vec![shader(None), shader(Some(Activation::Silu))]
}

/// Runs the convolution over `rows`, and stores the listed states.
///
/// # Errors
/// If the device refuses the kernel.
///
/// # Panics
/// If the widths differ, there are no taps, or a state has another size.
pub fn short_conv(gpu: &Gpu, rows: Rows<'_>, conv: &ShortConv<'_>) -> Result<Kernel, Error> {
    let ShortConv { n_taps, x, out, states, lists, .. } = *conv;
    assert_eq!(x.width, out.width, "widths of operand and result");
    assert!(n_taps > 0, "a convolution without taps");
    assert_eq!(states.spec.len, (n_taps - 1) * x.width, "elements of the layer's state");
    let params = Params {
        width: x.width,
        n_taps,
        rows_at: rows.at.0,
        seq_of_row_at: lists.seq_of_row_at,
        seqs_at: lists.seqs_at,
        writes_at: lists.writes_at,
        taps: conv.taps,
        bias: conv.bias.unwrap_or(NO_VECTOR),
        x: [x.start, x.stride],
        out: [out.start, out.stride],
    };
    let grid = Grid { x: x.width.div_ceil(WORKGROUP), rows: 1, z: 1 };
    let buffers = [rows.batch, conv.vectors, rows.values, &states.slots];
    gpu.kernel(&shader(conv.act), &params, &buffers, grid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::StateSpec;
    use crate::testing::{self, Bench, noise};

    const N_SLOTS: u32 = 16;

    /// A convolution with random inputs.
    struct Case {
        n_taps: u32,
        width: u32,
        n_rows: u32,
        bias: bool,
        act: Option<Activation>,
        x: Vec<f32>,       // [n_rows, width]
        vectors: Vec<f32>, // 2 unused, taps, bias
    }

    impl Case {
        fn new((n_taps, width, n_rows): (u32, u32, u32), act: Option<Activation>) -> Self {
            let x = noise((n_rows * width) as usize, 1);
            let vectors = noise((2 + (n_taps + 1) * width) as usize, 2);
            Self { n_taps, width, n_rows, bias: act.is_some(), act, x, vectors }
        }

        /// The definition, in f64.
        fn expected(&self) -> Vec<f64> {
            let (n, n_taps) = (self.width as usize, self.n_taps as usize);
            let element = |i: usize| {
                let (t, c) = (i / n, i % n);
                let vector = |at: usize| f64::from(self.vectors[2 + at * n + c]);
                let product = |i: usize| {
                    let row = (t + 1 + i).checked_sub(n_taps)?;
                    Some(vector(i) * f64::from(self.x[row * n + c]))
                };
                let sum: f64 = (0..n_taps).filter_map(product).sum();
                let sum = sum + if self.bias { vector(n_taps) } else { 0.0 };
                match self.act {
                    None => sum,
                    Some(Activation::Silu) => sum / (1.0 + (-sum).exp()),
                    Some(act) => panic!("no reference for {act:?}"),
                }
            };
            (0..self.x.len()).map(element).collect()
        }

        fn states(&self, gpu: &Gpu) -> StateLayer {
            let spec = StateSpec { len: (self.n_taps - 1) * self.width, n_slots: N_SLOTS };
            StateLayer::new(gpu, "states", spec).unwrap()
        }

        /// Rows `range` as the sequences `seqs` of one batch: each its number of rows and the slot
        /// that it continues from. `writes` are rows of the batch and slots.
        fn run(
            &self,
            gpu: &Gpu,
            states: &StateLayer,
            first: u32,
            seqs: &[(u32, u32)],
            writes: &[(u32, u32)],
        ) -> Vec<f32> {
            let n_rows: u32 = seqs.iter().map(|seq| seq.0).sum();
            let (x, out) = (
                View { start: 3, stride: self.width + 2, width: self.width },
                View {
                    start: 3 + n_rows * (self.width + 2),
                    stride: self.width,
                    width: self.width,
                },
            );
            let mut values = vec![7.5; (out.start + n_rows * self.width) as usize];
            for row in 0..n_rows {
                let from = ((first + row) * self.width) as usize;
                let to = (x.start + row * x.stride) as usize;
                let width = self.width as usize;
                values[to..to + width].copy_from_slice(&self.x[from..from + width]);
            }
            let (batch, lists) = testing::recurrent_batch(seqs, writes);
            let bench = Bench::new(gpu, &values, &batch);
            let taps = 2;
            let conv = ShortConv {
                vectors: &testing::filled(gpu, &self.vectors),
                taps,
                n_taps: self.n_taps,
                bias: self.bias.then_some(taps + self.n_taps * self.width),
                act: self.act,
                x,
                out,
                states,
                lists,
            };
            let kernel = short_conv(gpu, bench.rows(0), &conv).unwrap();
            bench.run(&[(&kernel, n_rows)])[out.start as usize..].to_vec()
        }
    }

    #[test]
    fn a_convolution_is_its_sum_however_it_is_cut() {
        let none = StateLists::NONE;
        for gpu in testing::gpus() {
            for (shape, act) in [
                ((3, 64, 9), None),
                ((4, 131, 11), Some(Activation::Silu)),
                ((1, 5, 4), None),
                ((2, 70, 6), Some(Activation::Silu)),
            ] {
                let case = Case::new(shape, act);
                let states = case.states(&gpu);
                let n = case.n_rows;
                let whole = case.run(&gpu, &states, 0, &[(n, none)], &[(n - 1, 0), (2, 1)]);
                for (i, (got, want)) in whole.iter().zip(case.expected()).enumerate() {
                    let apart = (f64::from(*got) - want).abs();
                    assert!(
                        apart <= 2e-6 * want.abs().max(1.0),
                        "{shape:?}, element {i}: {apart:e}"
                    );
                }
                // A state is the last rows of the input, the oldest first.
                let kept = ((case.n_taps - 1) * case.width) as usize;
                let all: Vec<f32> = testing::contents(&gpu, &states.slots, 2 * kept);
                let rows_to = |end: u32| {
                    let zeros = vec![0.0; kept];
                    let rows = [&zeros[..], &case.x[..(end * case.width) as usize]].concat();
                    rows[rows.len() - kept..].to_vec()
                };
                assert_eq!(all, [rows_to(n), rows_to(3)].concat(), "{shape:?}");
                // In steps, each from the state of the one before.
                for cuts in [vec![1, 2, 3, n], vec![2, n], (1..=n).collect()] {
                    let (mut got, mut from, mut start) = (Vec::new(), none, 0);
                    for (i, end) in (2..).zip(cuts) {
                        let n = end - start;
                        got.extend(case.run(&gpu, &states, start, &[(n, from)], &[(n - 1, i)]));
                        (from, start) = (i, end);
                    }
                    assert_eq!(got, whole, "{shape:?} in steps");
                }
            }
        }
    }

    #[test]
    fn sequences_of_a_batch_do_not_meet() {
        let Some(gpu) = testing::gpu() else { return };
        let none = StateLists::NONE;
        let case = Case::new((4, 40, 9), Some(Activation::Silu));
        let states = case.states(&gpu);
        case.run(&gpu, &states, 0, &[(3, none)], &[(2, 0)]);
        let one = case.run(&gpu, &states, 3, &[(2, 0)], &[]);
        let other = case.run(&gpu, &states, 5, &[(3, 0)], &[]);
        let new = case.run(&gpu, &states, 8, &[(1, none)], &[]);
        // Two continue from one state, as forks do, and one begins.
        let seqs = [(2, 0), (3, 0), (1, none)];
        let together = case.run(&gpu, &states, 3, &seqs, &[(1, 1), (4, 2), (5, 3)]);
        assert_eq!(together, [one, other, new].concat());
    }
}
