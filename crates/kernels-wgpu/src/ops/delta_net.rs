//! The gated delta rule (Yang et al., 2024, "Gated Delta Networks", arXiv:2412.06464): linear attention whose
//! state decays by a gate and replaces the value stored for a key.
//!
//! A workgroup computes some value columns of one head for all rows of a sequence, in order, so the bits do not
//! depend on how the sequence is cut into steps.

use crate::dispatch::shader::{Access, Shader};
use crate::dispatch::{Grid, Kernel, Rows, View};
use crate::ops::elementwise::ACTIVATIONS;
use crate::storage::{StateLayer, StateLists, StateSpec};
use crate::{Buffer, Error, Gpu};

/// Number of parts of a state column; each part has an invocation.
const PARTS: u32 = 16;
/// Columns per workgroup.
const COLUMNS: u32 = 16;
/// Supported numbers of elements per part, with the shader part that declares each.
const PART_LENS: [(u32, &str); 5] = [
    (1, "const PART_LEN: u32 = 1u;\n"),
    (2, "const PART_LEN: u32 = 2u;\n"),
    (4, "const PART_LEN: u32 = 4u;\n"),
    (8, "const PART_LEN: u32 = 8u;\n"),
    (16, "const PART_LEN: u32 = 16u;\n"),
];

/// Shape and constants of a gated delta rule. For each value head, with a state `S` of `[k_dim, v_dim]`,
/// normalized `q` and `k`, and `q` divided by the square root of `k_dim`:
///
/// ```text
/// S = exp(g) S                       g = decay * softplus(a + dt_bias)
/// S = S + k (sigmoid(b) (v - kᵀ S))
/// o = qᵀ S
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeltaNetSpec {
    /// Number of key and query heads; each serves `n_v_heads / n_k_heads` value heads.
    pub n_k_heads: u32,
    /// Number of value heads.
    pub n_v_heads: u32,
    /// Elements per key.
    pub k_dim: u32,
    /// Elements per value.
    pub v_dim: u32,
    /// Added to the sum of squares in the normalization of keys and queries.
    pub eps: f32,
    /// Whether value head `h` uses key head `h % n_k_heads`, instead of `h / (n_v_heads / n_k_heads)`.
    pub tiled: bool,
}

impl DeltaNetSpec {
    /// The shape of a layer's states.
    pub fn states(&self, n_slots: u32) -> StateSpec {
        let len = [self.n_v_heads, self.k_dim, self.v_dim];
        StateSpec { len: len.into_iter().fold(1, u32::saturating_mul), n_slots }
    }

    /// Workgroups per sequence.
    fn workgroups(&self) -> u32 {
        self.n_v_heads.saturating_mul(self.v_dim.div_ceil(COLUMNS))
    }

    fn part_len(&self) -> Result<(u32, &'static str), Error> {
        let fits = |(len, _): &(u32, &str)| self.k_dim <= PARTS * len;
        PART_LENS.into_iter().find(fits).ok_or_else(|| {
            let most = PARTS * PART_LENS[PART_LENS.len() - 1].0;
            let what = format!("the gated delta rule with keys of {} elements", self.k_dim);
            Error::Unsupported(format!("{what} ({most} at most)"))
        })
    }

    /// Checks whether a device supports the rule, without allocating.
    ///
    /// # Errors
    /// If keys are longer than the kernels support, or there are too many heads for the device.
    pub fn check(&self, gpu: &Gpu) -> Result<(), Error> {
        self.part_len()?;
        let (needed, available) = (self.workgroups(), gpu.caps().max_workgroups);
        if needed > available {
            return Err(Error::Limit {
                what: "the heads of the gated delta rule".to_owned(),
                needed: u64::from(needed),
                limit: "maxComputeWorkgroupsPerDimension",
                available: u64::from(available),
            });
        }
        Ok(())
    }
}

/// A gated delta rule with its operands.
#[derive(Debug, Clone, Copy)]
pub struct DeltaNet<'a> {
    /// Shape and constants.
    pub spec: DeltaNetSpec,
    /// Decays and biases, f32.
    pub vectors: &'a Buffer,
    /// Index in `vectors` of `-exp(A_log)` of the value heads.
    pub decay: u32,
    /// Index in `vectors` of the biases of the decay gates.
    pub dt_bias: u32,
    /// Queries. `[n_k_heads * k_dim]`
    pub q: View,
    /// Keys. `[n_k_heads * k_dim]`
    pub k: View,
    /// Values. `[n_v_heads * v_dim]`
    pub v: View,
    /// Inputs of the decay gates. `[n_v_heads]`
    pub a: View,
    /// Inputs of the write gates, before the sigmoid. `[n_v_heads]`
    pub b: View,
    /// The result, which must not overlap the inputs. `[n_v_heads * v_dim]`
    pub out: View,
    /// The states.
    pub states: &'a StateLayer,
    /// Indices of the step's words about the states.
    pub lists: StateLists,
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    n_k_heads: u32,
    n_v_heads: u32,
    k_dim: u32,
    v_dim: u32,
    tiled: u32,
    root: f32,
    eps: f32,
    range_at: u32,
    seqs_at: u32,
    writes_at: u32,
    decay: u32,
    dt_bias: u32,
    q: [u32; 2], // start, stride
    k: [u32; 2],
    v: [u32; 2],
    a: [u32; 2],
    b: [u32; 2],
    out: [u32; 2],
}

fn shader((part_len, text): (u32, &'static str)) -> Shader {
    Shader {
        name: format!("delta_net {part_len}").into(),
        parts: vec![text, ACTIVATIONS, include_str!("../../shaders/recurrent/delta_net.wgsl")],
        bindings: &[Access::Read, Access::Read, Access::ReadWrite, Access::ReadWrite],
        constants: Vec::new(),
    }
}

pub(crate) fn shaders() -> Vec<Shader> {
    PART_LENS.into_iter().map(shader).collect()
}

/// Runs the rule over the rows of each sequence, and stores the listed states. The kernel runs once per
/// sequence: the range at `seqs.at` is one of sequences, not of rows.
///
/// # Errors
/// If keys are longer than the kernels support, or the device refuses the kernel.
///
/// # Panics
/// If the shapes disagree.
pub fn delta_net(gpu: &Gpu, seqs: Rows<'_>, net: &DeltaNet<'_>) -> Result<Kernel, Error> {
    let DeltaNet { spec, q, k, v, a, b, out, states, lists, .. } = *net;
    let whole = spec.n_k_heads > 0 && spec.n_v_heads.is_multiple_of(spec.n_k_heads);
    assert!(whole && spec.k_dim > 0 && spec.v_dim > 0, "heads of {spec:?}");
    let (keys, vals) = (spec.n_k_heads * spec.k_dim, spec.n_v_heads * spec.v_dim);
    let gates = spec.n_v_heads;
    for (view, width) in [(q, keys), (k, keys), (v, vals), (a, gates), (b, gates), (out, vals)] {
        assert_eq!(view.width, width, "columns of {spec:?}");
    }
    assert_eq!(states.spec, spec.states(states.spec.n_slots), "the layer's states");
    let params = Params {
        n_k_heads: spec.n_k_heads,
        n_v_heads: spec.n_v_heads,
        k_dim: spec.k_dim,
        v_dim: spec.v_dim,
        tiled: u32::from(spec.tiled),
        root: (spec.k_dim as f32).sqrt().recip(),
        eps: spec.eps,
        range_at: seqs.at.0,
        seqs_at: lists.seqs_at,
        writes_at: lists.writes_at,
        decay: net.decay,
        dt_bias: net.dt_bias,
        q: [q.start, q.stride],
        k: [k.start, k.stride],
        v: [v.start, v.stride],
        a: [a.start, a.stride],
        b: [b.start, b.stride],
        out: [out.start, out.stride],
    };
    let grid = Grid { x: spec.workgroups(), rows: 1, z: 1 };
    let buffers = [seqs.batch, net.vectors, seqs.values, &states.slots];
    gpu.kernel(&shader(spec.part_len()?), &params, &buffers, grid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Bench, noise};

    const N_SLOTS: u32 = 24;
    const NONE: u32 = StateLists::NONE;

    /// A rule with random inputs.
    struct Case {
        spec: DeltaNetSpec,
        n_rows: u32,
        /// q, k, v, a and b of all rows.
        inputs: [Vec<f32>; 5],
        decay: Vec<f32>,
        dt_bias: Vec<f32>,
    }

    impl Case {
        fn new([n_k_heads, n_v_heads, k_dim, v_dim]: [u32; 4], tiled: bool, n_rows: u32) -> Self {
            let spec = DeltaNetSpec { n_k_heads, n_v_heads, k_dim, v_dim, eps: 1e-6, tiled };
            let (keys, values) = (n_k_heads * k_dim, n_v_heads * v_dim);
            let random = |i: u32, n: u32| noise(n as usize, u64::from(i));
            let widths = [(0, keys), (1, keys), (2, values), (3, n_v_heads), (4, n_v_heads)];
            let mut inputs = widths.map(|(i, width)| random(i, n_rows * width));
            // Gates of any size: almost nothing is forgotten, and almost all.
            inputs[3].iter_mut().for_each(|a| *a *= 30.0);
            let decay = random(5, n_v_heads).iter().map(|x| -x.abs() * 0.3).collect();
            Self { spec, n_rows, inputs, decay, dt_bias: random(6, n_v_heads) }
        }

        /// The definition, in f64: the answers and the last states, `[n_v_heads][v_dim][k_dim]`.
        fn expected(&self) -> (Vec<f64>, Vec<f64>) {
            let DeltaNetSpec { n_k_heads, n_v_heads, k_dim, v_dim, tiled, .. } = self.spec;
            let [n_k_heads, n_v_heads, k_dim, v_dim] =
                [n_k_heads, n_v_heads, k_dim, v_dim].map(|n| n as usize);
            let [q, k, v, a, b] = &self.inputs;
            let unit = |x: &[f32]| {
                let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
                let norm = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                x.into_iter().map(|x| x / norm).collect::<Vec<_>>()
            };
            let mut out = Vec::new();
            let mut states = vec![0.0; n_v_heads * v_dim * k_dim];
            for t in 0..self.n_rows as usize {
                for h in 0..n_v_heads {
                    let kh = if tiled { h % n_k_heads } else { h / (n_v_heads / n_k_heads) };
                    let at = (t * n_k_heads + kh) * k_dim;
                    let (q, k) = (unit(&q[at..at + k_dim]), unit(&k[at..at + k_dim]));
                    let gate = f64::from(a[t * n_v_heads + h]) + f64::from(self.dt_bias[h]);
                    let decay = (f64::from(self.decay[h]) * gate.exp().ln_1p()).exp();
                    let write = 1.0 / (1.0 + (-f64::from(b[t * n_v_heads + h])).exp());
                    for j in 0..v_dim {
                        let state = &mut states[(h * v_dim + j) * k_dim..][..k_dim];
                        state.iter_mut().for_each(|s| *s *= decay);
                        let known: f64 = state.iter().zip(&k).map(|(s, k)| s * k).sum();
                        let value = f64::from(v[(t * n_v_heads + h) * v_dim + j]);
                        let delta = (value - known) * write;
                        state.iter_mut().zip(&k).for_each(|(s, k)| *s += k * delta);
                        let answer: f64 = state.iter().zip(&q).map(|(s, q)| s * q).sum();
                        out.push(answer / (k_dim as f64).sqrt());
                    }
                }
            }
            (out, states)
        }

        fn states(&self, gpu: &Gpu) -> StateLayer {
            StateLayer::new(gpu, "states", self.spec.states(N_SLOTS)).unwrap()
        }

        /// The rows from `first` on as the sequences `seqs` of one batch: each its number of rows and
        /// the slot that it continues from. `writes` are rows of the batch and slots.
        fn run(
            &self,
            gpu: &Gpu,
            states: &StateLayer,
            first: u32,
            seqs: &[(u32, u32)],
            writes: &[(u32, u32)],
        ) -> Vec<f32> {
            let n_rows: u32 = seqs.iter().map(|seq| seq.0).sum();
            let mut values = vec![7.5_f32; 3];
            let views = [0, 1, 2, 3, 4].map(|i| {
                let all: &[f32] = &self.inputs[i];
                let width = all.len() as u32 / self.n_rows;
                let start = values.len() as u32;
                for row in
                    all.chunks_exact(width as usize).skip(first as usize).take(n_rows as usize)
                {
                    values.extend(row);
                    values.push(f32::NAN);
                }
                View { start, stride: width + 1, width }
            });
            let [q, k, v, a, b] = views;
            let out = View { start: values.len() as u32, ..View::dense(0, v.width) };
            values.resize(values.len() + (n_rows * v.width) as usize, 7.5);
            let (batch, lists) = testing::recurrent_batch(seqs, writes);
            let bench = Bench::new(gpu, &values, &batch);
            let vectors = [&self.decay[..], &self.dt_bias].concat();
            let net = DeltaNet {
                spec: self.spec,
                vectors: &testing::filled(gpu, &vectors),
                decay: 0,
                dt_bias: self.spec.n_v_heads,
                q,
                k,
                v,
                a,
                b,
                out,
                states,
                lists,
            };
            // The sequences' range comes after that of the rows.
            let kernel = delta_net(gpu, bench.rows(2), &net).unwrap();
            bench.run(&[(&kernel, seqs.len() as u32)])[out.start as usize..].to_vec()
        }
    }

    fn assert_close(got: &[f32], want: &[f64], what: &str) {
        assert_eq!(got.len(), want.len(), "{what}");
        let largest = want.iter().fold(0.0_f64, |m, x| m.max(x.abs()));
        for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
            let apart = (f64::from(got) - want).abs();
            assert!(apart <= 4e-6 * largest, "{what}, element {i}: {got} for {want}");
        }
    }

    #[test]
    fn the_delta_rule_is_its_definition() {
        for gpu in testing::gpus() {
            for (shape, tiled) in [
                ([1, 1, 8, 8], false),
                ([2, 4, 16, 24], false),
                ([2, 4, 16, 24], true),
                ([1, 3, 20, 40], false),
                ([1, 1, 48, 16], false),
                ([2, 2, 128, 128], false),
                ([1, 1, 200, 8], false),
            ] {
                let case = Case::new(shape, tiled, 19);
                let (answers, last) = case.expected();
                let states = case.states(&gpu);
                let got = case.run(&gpu, &states, 0, &[(19, NONE)], &[(18, 0)]);
                let what = format!("{shape:?} on {}", gpu.name());
                assert_close(&got, &answers, &what);
                let state: Vec<f32> = testing::contents(&gpu, &states.slots, last.len());
                assert_close(&state, &last, &format!("state, {what}"));
            }
        }
    }

    #[test]
    fn cuts_and_kept_states_change_no_bit() {
        let case = Case::new([2, 4, 40, 24], false, 12);
        for gpu in testing::gpus() {
            let states = case.states(&gpu);
            let slot = |i: usize| {
                let n = states.spec.len as usize;
                let all: Vec<f32> = testing::contents(&gpu, &states.slots, (i + 1) * n);
                all[i * n..].to_vec()
            };
            let whole = case.run(&gpu, &states, 0, &[(12, NONE)], &[(3, 1), (7, 2), (11, 3)]);
            let width = whole.len() / 12;
            // From each of the states that were kept on the way.
            for (row, from) in [(4, 1), (8, 2)] {
                let rest = case.run(&gpu, &states, row, &[(12 - row, from)], &[(11 - row, 4)]);
                assert_eq!(rest, whole[row as usize * width..], "from row {row}");
                assert_eq!(slot(4), slot(3), "from row {row}");
            }
            // Row by row.
            let mut by_rows = Vec::new();
            for row in 0..12 {
                let from = if row == 0 { NONE } else { 4 + row };
                by_rows.extend(case.run(&gpu, &states, row, &[(1, from)], &[(0, 5 + row)]));
            }
            assert_eq!(by_rows, whole, "row by row");
            assert_eq!(slot(16), slot(3), "row by row");
        }
    }

    #[test]
    fn sequences_of_a_batch_do_not_meet() {
        let Some(gpu) = testing::gpu() else { return };
        let case = Case::new([1, 2, 16, 16], false, 9);
        let states = case.states(&gpu);
        case.run(&gpu, &states, 0, &[(3, NONE)], &[(2, 0)]);
        let one = case.run(&gpu, &states, 3, &[(2, 0)], &[]);
        let other = case.run(&gpu, &states, 5, &[(3, 0)], &[]);
        let new = case.run(&gpu, &states, 8, &[(1, NONE)], &[]);
        // Two continue from one state, as forks do, and one begins.
        let seqs = [(2, 0), (3, 0), (1, NONE)];
        let together = case.run(&gpu, &states, 3, &seqs, &[(1, 1), (4, 2), (5, 3)]);
        assert_eq!(together, [one, other, new].concat());
    }

    #[test]
    fn what_the_kernels_do_not_take_is_refused() {
        let Some(gpu) = testing::gpu() else { return };
        let spec = Case::new([2, 4, 256, 24], false, 1).spec;
        assert_eq!(spec.check(&gpu), Ok(()));
        let long = DeltaNetSpec { k_dim: 257, ..spec }.check(&gpu).unwrap_err().to_string();
        assert!(long.contains("keys of 257 elements (256 at most)"), "{long}");
        let wide = DeltaNetSpec { n_v_heads: 1 << 12, v_dim: 1 << 12, ..spec };
        let error = wide.check(&gpu).unwrap_err();
        assert!(matches!(error, Error::Limit { needed: 1_048_576, .. }), "{error}");
    }
}
