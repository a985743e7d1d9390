//! The gated delta rule: linear attention whose state decays by a gate and is corrected by the difference to each new
//! value (Yang et al., 2024, "Gated Delta Networks", arXiv:2412.06464).
//!
//! A block computes some value columns of one head for all rows of a sequence in order, so the division of a sequence
//! into steps does not affect any bit.

use super::recurrent::THREADS;
use crate::device::{Argument, Device};
use crate::kernels::{KEY_PIECES, Kernels};
use crate::{Error, Rows, StateLayer, StateLists, StateSpec};

/// Elements of a key that eight lanes process at a time.
const PIECE: usize = 32;
/// Columns of a block with one column per lane.
const COLUMNS: usize = 16;

/// The shape and constants of a gated delta rule. For each value head, with `S` of `[k_dim, v_dim]`, normalized `q` and
/// `k`, and `q` divided by the root of `k_dim`:
///
/// ```text
/// S = exp(g) S                       g = decay * softplus(a + dt_bias)
/// S = S + k (sigmoid(b) (v - kᵀ S))
/// o = qᵀ S
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeltaNetSpec {
    /// Key and query heads. Each serves `n_v_heads / n_k_heads` value heads.
    pub n_k_heads: usize,
    /// Value heads.
    pub n_v_heads: usize,
    /// Elements of a key, at most [`DeltaNetSpec::MAX_KEY_DIM`].
    pub k_dim: usize,
    /// Elements of a value.
    pub v_dim: usize,
    /// Added to the squared norms of keys and queries before normalization.
    pub eps: f32,
    /// Whether value head `h` uses key head `h % n_k_heads`, instead of `h / (n_v_heads / n_k_heads)`.
    pub tiled: bool,
}

impl DeltaNetSpec {
    /// The maximum key dimension of the kernels.
    pub const MAX_KEY_DIM: usize = PIECE * KEY_PIECES[KEY_PIECES.len() - 1];

    /// The shape of a layer's states.
    pub fn states(&self, n_slots: usize) -> StateSpec {
        let len = [self.n_v_heads, self.k_dim, self.v_dim];
        StateSpec { len: len.into_iter().fold(1, usize::saturating_mul), n_slots }
    }
}

/// Operands of a gated delta rule.
#[derive(Debug)]
pub struct DeltaNet<'a, D: Device> {
    /// Shape and constants.
    pub spec: DeltaNetSpec,
    /// `-exp(A_log)` of the value heads. `[1, n_v_heads]`
    pub decay: Rows<'a, D>,
    /// Added to the decay gates. `[1, n_v_heads]`
    pub dt_bias: Rows<'a, D>,
    /// Queries. `[n_rows, n_k_heads * k_dim]`
    pub q: Rows<'a, D>,
    /// Keys. `[n_rows, n_k_heads * k_dim]`
    pub k: Rows<'a, D>,
    /// Values. `[n_rows, n_v_heads * v_dim]`
    pub v: Rows<'a, D>,
    /// Decay gates. `[n_rows, n_v_heads]`
    pub a: Rows<'a, D>,
    /// Write gates before the sigmoid. `[n_rows, n_v_heads]`
    pub b: Rows<'a, D>,
    /// The result, which must not overlap the inputs. `[n_rows, n_v_heads * v_dim]`
    pub out: Rows<'a, D>,
    /// States of the layer.
    pub states: &'a StateLayer<D>,
    /// The states that are read and written.
    pub lists: StateLists<'a, D>,
}

/// Queues the rule for the rows of all sequences and stores the requested states. Rows without a sequence are skipped.
/// Rows and slots that do not exist stop the device, which the next call that waits reports.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match, or keys are longer than [`DeltaNetSpec::MAX_KEY_DIM`].
pub fn delta_net<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    net: &DeltaNet<'_, D>,
) -> Result<(), Error> {
    let &DeltaNet { spec, decay, dt_bias, q, k, v, a, b, out, states, lists } = net;
    let DeltaNetSpec { n_k_heads, n_v_heads, k_dim, v_dim, eps, tiled } = spec;
    assert!(n_k_heads > 0 && n_v_heads.is_multiple_of(n_k_heads), "{spec:?}");
    let n_rows = q.n_rows();
    for (what, rows, n_cols) in [
        ("q", q, n_k_heads * k_dim),
        ("k", k, n_k_heads * k_dim),
        ("v", v, n_v_heads * v_dim),
        ("a", a, n_v_heads),
        ("b", b, n_v_heads),
        ("out", out, n_v_heads * v_dim),
    ] {
        rows.check(kernels, what, n_rows, n_cols);
    }
    decay.check(kernels, "decay", 1, n_v_heads);
    dt_bias.check(kernels, "dt_bias", 1, n_v_heads);
    lists.check(kernels, n_rows, states, spec.states(0).len);
    let pieces = KEY_PIECES.iter().position(|pieces| k_dim <= PIECE * pieces);
    let pieces = pieces.unwrap_or_else(|| panic!("keys of {k_dim} elements"));
    // Sequences of several rows read keys and queries repeatedly. Both kernels have the same bits.
    let cols = if n_rows >= 4 * lists.n_seqs { 2 } else { 1 };
    let is_wide = q.is_aligned() && k.is_aligned() && k_dim.is_multiple_of(4);
    let [slots, slot_len, n_slots] = states.arguments();
    let [n_k_heads, n_heads, key_dim, value_dim, is_tiled, is_wide] =
        [n_k_heads, n_v_heads, k_dim, v_dim, usize::from(tiled), usize::from(is_wide)]
            .map(|n| Argument::I32(n as i32));
    let arguments = [
        q.address(),
        q.stride(),
        k.address(),
        k.stride(),
        v.address(),
        v.stride(),
        a.address(),
        a.stride(),
        b.address(),
        b.stride(),
        decay.address(),
        dt_bias.address(),
        out.address(),
        out.stride(),
        slots,
        slot_len,
        n_slots,
        lists.seqs.address(),
        lists.writes.address(),
        Argument::I32(n_rows as i32),
        n_k_heads,
        n_heads,
        key_dim,
        value_dim,
        Argument::F32(eps),
        is_tiled,
        is_wide,
    ];
    let function = &kernels.recurrent.delta_net[cols - 1][pieces];
    // A state fits in 31 bits, and so do its columns.
    let n_blocks = n_v_heads * v_dim.div_ceil(cols * COLUMNS);
    let grid = [n_blocks as u32, lists.n_seqs as u32, 1];
    // SAFETY: the arguments are those of `delta_net_*` in order; rows and lists lie inside their buffers and their
    // shapes were checked, and the kernel checks the lists' contents. As `matvec` says, buffers outlive queued work.
    unsafe { kernels.launch(stream, function, grid, [THREADS, 1], &arguments) }
}

#[cfg(any(test, feature = "tests"))]
pub(super) mod tests {
    use super::*;
    use crate::testing::{Random, StateWords, TestDevice, kernels, on_device, read};
    use realizar_ptx::Stream;

    const NONE: u32 = StateLists::<TestDevice>::NONE;
    const N_SLOTS: usize = 32;

    /// A rule with random inputs.
    struct Case {
        kernels: Kernels<TestDevice>,
        stream: Stream,
        spec: DeltaNetSpec,
        n_rows: usize,
        /// q, k, v, a and b of all rows.
        inputs: [Vec<f32>; 5],
        /// With one unused element before.
        decay: Vec<f32>,
        dt_bias: Vec<f32>,
        states: StateLayer<TestDevice>,
        /// Unused elements between rows.
        gap: usize,
    }

    impl Case {
        fn new(shape: [usize; 4], tiled: bool, n_rows: usize) -> Self {
            let [n_k_heads, n_v_heads, k_dim, v_dim] = shape;
            let (kernels, stream) = kernels();
            let spec = DeltaNetSpec { n_k_heads, n_v_heads, k_dim, v_dim, eps: 1e-6, tiled };
            let (keys, values) = (n_k_heads * k_dim, n_v_heads * v_dim);
            let mut random = Random(k_dim as u64);
            let mut inputs =
                [keys, keys, values, n_v_heads, n_v_heads].map(|n| random.floats(n_rows * n));
            // Gates of all sizes: almost nothing decays, and almost everything.
            inputs[3].iter_mut().for_each(|a| *a *= 30.0);
            let decay = random.floats(n_v_heads + 1).iter().map(|x| -x.abs() * 0.3).collect();
            let dt_bias = random.floats(n_v_heads + 1);
            let states = StateLayer::new(kernels.device(), "states", spec.states(N_SLOTS)).unwrap();
            Self { kernels, stream, spec, n_rows, inputs, decay, dt_bias, states, gap: 4 }
        }

        /// The definition in F64: results and final states, `[n_v_heads][v_dim][k_dim]`.
        fn expected(&self) -> (Vec<f64>, Vec<f64>) {
            let DeltaNetSpec { n_k_heads, n_v_heads, k_dim, v_dim, tiled, .. } = self.spec;
            let [q, k, v, a, b] = &self.inputs;
            let unit = |x: &[f32]| {
                let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
                let norm = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                x.into_iter().map(|x| x / norm).collect::<Vec<_>>()
            };
            let mut out = Vec::new();
            let mut states = vec![0.0; n_v_heads * v_dim * k_dim];
            for t in 0..self.n_rows {
                for h in 0..n_v_heads {
                    let kh = if tiled { h % n_k_heads } else { h / (n_v_heads / n_k_heads) };
                    let at = (t * n_k_heads + kh) * k_dim;
                    let (q, k) = (unit(&q[at..at + k_dim]), unit(&k[at..at + k_dim]));
                    let gate = f64::from(a[t * n_v_heads + h]) + f64::from(self.dt_bias[h + 1]);
                    let decay = (f64::from(self.decay[h + 1]) * gate.exp().ln_1p()).exp();
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

        /// Runs the rows from `first` on as a batch of sequences, each given by its number of rows and the slot that it
        /// continues from. `writes` are pairs of a row of the batch and a slot.
        fn run(&self, first: usize, seqs: &[(usize, u32)], writes: &[(usize, u32)]) -> Vec<f32> {
            let (stream, device) = (&self.stream, self.kernels.device());
            let words = StateWords::new(device, stream, seqs, writes);
            let n_rows = words.n_rows();
            let put = |values: &[f32]| on_device(device, stream, values);
            let inputs: Vec<_> = self
                .inputs
                .iter()
                .map(|all| {
                    let width = all.len() / self.n_rows;
                    let stride = width + self.gap;
                    let mut values = vec![f32::NAN; n_rows * stride];
                    for row in 0..n_rows - 1 {
                        values[row * stride..][..width]
                            .copy_from_slice(&all[(first + row) * width..][..width]);
                    }
                    (put(&values), width, stride)
                })
                .collect();
            let rows = |i: usize| {
                let (buffer, width, stride) = &inputs[i];
                Rows::new(buffer, 0, n_rows, *width, *stride)
            };
            let n = self.spec.n_v_heads;
            let width = n * self.spec.v_dim;
            let out = put(&vec![f32::NAN; n_rows * (width + 1)]);
            let (decay, dt_bias) = (put(&self.decay), put(&self.dt_bias));
            let net = DeltaNet {
                spec: self.spec,
                decay: Rows::vector_at(&decay, 1, n),
                dt_bias: Rows::vector_at(&dt_bias, 1, n),
                q: rows(0),
                k: rows(1),
                v: rows(2),
                a: rows(3),
                b: rows(4),
                out: Rows::new(&out, 0, n_rows, width, width + 1),
                states: &self.states,
                lists: words.lists(),
            };
            delta_net(&self.kernels, stream, &net).unwrap();
            let found = read(stream, &out, n_rows * (width + 1));
            let mut rows = found.chunks(width + 1);
            let last = rows.next_back().unwrap();
            assert!(last.iter().all(|x| x.is_nan()), "a row of no sequence was written");
            let mut all = Vec::new();
            for row in rows {
                assert!(row[width].is_nan(), "behind a row");
                all.extend(&row[..width]);
            }
            all
        }

        fn state(&self, slot: usize) -> Vec<f32> {
            let mut state = vec![0.0f32; self.states.spec().len];
            let bytes = bytemuck::cast_slice_mut(&mut state);
            self.states.read(&self.stream, slot, bytes).unwrap();
            state
        }
    }

    fn assert_close(found: &[f32], wanted: &[f64], what: &str) {
        assert_eq!(found.len(), wanted.len(), "{what}");
        let largest = wanted.iter().fold(0.0_f64, |m, x| m.max(x.abs()));
        for (i, (&found, &wanted)) in found.iter().zip(wanted).enumerate() {
            let away = (f64::from(found) - wanted).abs();
            assert!(away <= 2e-6 * largest, "{what}, element {i}: {found} for {wanted}");
        }
    }

    #[cfg_attr(test, test)]
    fn the_delta_rule_is_its_definition() {
        for (shape, tiled, gap) in [
            ([1, 1, 8, 8], false, 4),
            ([2, 4, 16, 24], false, 4),
            ([2, 4, 16, 24], true, 3),
            ([1, 3, 20, 40], false, 4),
            ([1, 1, 7, 5], false, 1),
            ([1, 2, 46, 16], false, 4),
            ([1, 1, 128, 33], false, 4),
            ([2, 4, 128, 128], true, 4),
            ([1, 1, 200, 8], false, 4),
        ] {
            let case = Case { gap, ..Case::new(shape, tiled, 19) };
            let (answers, last) = case.expected();
            let found = case.run(0, &[(19, NONE)], &[(18, 0)]);
            assert_close(&found, &answers, &format!("{shape:?}"));
            assert_close(&case.state(0), &last, &format!("state, {shape:?}"));
        }
    }

    #[cfg_attr(test, test)]
    fn cuts_and_kept_states_change_no_bit() {
        // One for each kernel.
        for k_dim in [20, 40, 100, 200] {
            let case = Case::new([1, 2, k_dim, 20], false, 12);
            let whole = case.run(0, &[(12, NONE)], &[(3, 1), (7, 2), (11, 3)]);
            let width = whole.len() / 12;
            // Continue from each of the stored states.
            for (row, from) in [(4, 1), (8, 2)] {
                let rest = case.run(row, &[(12 - row, from)], &[(11 - row, 4)]);
                assert_eq!(rest, whole[row * width..], "from row {row}");
                assert_eq!(case.state(4), case.state(3), "from row {row}");
            }
            // One row at a time, with one column per lane instead of two.
            let mut by_rows = Vec::new();
            for row in 0..12 {
                let from = if row == 0 { NONE } else { 4 + row as u32 };
                by_rows.extend(case.run(row, &[(1, from)], &[(0, 5 + row as u32)]));
            }
            assert_eq!(by_rows, whole, "row by row");
            assert_eq!(case.state(16), case.state(3), "row by row");
        }
    }

    #[cfg_attr(test, test)]
    fn sequences_of_a_batch_do_not_meet() {
        let case = Case::new([1, 2, 16, 16], false, 9);
        case.run(0, &[(3, NONE)], &[(2, 0)]);
        let one = case.run(3, &[(2, 0)], &[]);
        let other = case.run(5, &[(3, 0)], &[]);
        let new = case.run(8, &[(1, NONE)], &[]);
        // Two sequences continue from one state, as forks do, one begins, and one has no rows.
        let seqs = [(2, 0), (0, NONE), (3, 0), (1, NONE)];
        let together = case.run(3, &seqs, &[(1, 1), (4, 2), (5, 3)]);
        assert_eq!(together, [one, other, new].concat());
    }

    #[cfg_attr(test, test)]
    fn a_captured_step_goes_on_from_the_slots_of_each_replay() {
        let case = Case::new([1, 1, 8, 4], false, 3);
        let whole = case.run(0, &[(3, NONE)], &[]);
        let (stream, device) = (&case.stream, case.kernels.device());
        let rows: Vec<_> = case.inputs.iter().map(|x| on_device(device, stream, x)).collect();
        let one = |i: usize| Rows::vector(&rows[i], case.inputs[i].len() / 3);
        let words = on_device(device, stream, &[0, 1, NONE, NONE]);
        let of_rows = on_device(device, stream, &[0u32]);
        let decay = on_device(device, stream, &case.decay);
        let dt_bias = on_device(device, stream, &case.dt_bias);
        let out = on_device(device, stream, &[0.0f32; 4]);
        let net = DeltaNet {
            spec: case.spec,
            decay: Rows::vector_at(&decay, 1, 1),
            dt_bias: Rows::vector_at(&dt_bias, 1, 1),
            q: one(0),
            k: one(1),
            v: one(2),
            a: one(3),
            b: one(4),
            out: Rows::vector(&out, 4),
            states: &case.states,
            lists: StateLists {
                seqs: crate::List::new(&words, 0, 3),
                seq_of_row: crate::List::all(&of_rows),
                writes: crate::List::new(&words, 3, 1),
                n_seqs: 1,
            },
        };
        device.begin_capture(stream).unwrap();
        delta_net(&case.kernels, stream, &net).unwrap();
        let graph = device.end_capture(stream).unwrap();
        for row in 0..3 {
            let from = if row == 0 { NONE } else { row as u32 };
            words.write(stream, 0, &[0, 1, from, row as u32 + 1]).unwrap();
            for (buffer, input) in rows.iter().zip(&case.inputs) {
                let width = input.len() / 3;
                buffer.write(stream, 0, &input[row * width..][..width]).unwrap();
            }
            // SAFETY: all buffers are still alive.
            unsafe { device.replay(stream, &graph) }.unwrap();
            assert_eq!(read(stream, &out, 4), whole[row * 4..][..4]);
        }
    }

    #[cfg_attr(test, test)]
    fn rows_and_slots_that_do_not_exist_are_reported() {
        for (n, from, to) in [(1, 32, NONE), (1, NONE, 32), (3, NONE, NONE)] {
            let case = Case::new([1, 1, 4, 4], false, 1);
            let (stream, device) = (&case.stream, case.kernels.device());
            let words = on_device(device, stream, &[0, n, from, 0, 0, to, to]);
            let x = on_device(device, stream, &[0.5f32; 8]);
            let rows = |n_cols| Rows::new(&x, 0, 2, n_cols, 4);
            let out = on_device(device, stream, &[0.0f32; 8]);
            let net = DeltaNet {
                spec: case.spec,
                decay: Rows::vector(&x, 1),
                dt_bias: Rows::vector(&x, 1),
                q: rows(4),
                k: rows(4),
                v: rows(4),
                a: rows(1),
                b: rows(1),
                out: Rows::new(&out, 0, 2, 4, 4),
                states: &case.states,
                lists: StateLists {
                    seqs: crate::List::new(&words, 0, 3),
                    seq_of_row: crate::List::new(&words, 3, 2),
                    writes: crate::List::new(&words, 5, 2),
                    n_seqs: 1,
                },
            };
            delta_net(&case.kernels, stream, &net).unwrap();
            let message = device.synchronize(stream).unwrap_err().to_string();
            assert!(message.contains("trap") && message.contains("delta_net_1_1"), "{message}");
        }
    }

    crate::testing::tests![
        the_delta_rule_is_its_definition,
        cuts_and_kept_states_change_no_bit,
        sequences_of_a_batch_do_not_meet,
        a_captured_step_goes_on_from_the_slots_of_each_replay,
        rows_and_slots_that_do_not_exist_are_reported,
    ];
}
