//! Causal depthwise convolutions over few positions.
//!
//! The state of a sequence is the last `n_taps - 1` rows of the input, the oldest first. An element is computed from
//! the input alone, so the division of a sequence into steps does not affect any bit.

use super::recurrent::THREADS;
use super::rows::optional;
use crate::device::{Argument, Device};
use crate::kernels::{Kernels, activation_argument};
use crate::{Activation, Error, Rows, StateLayer, StateLists};

/// Number of elements from which threads process four each. Fewer elements would leave too many threads idle.
const FOUR_FROM: usize = 1 << 18;
/// Argument that stands for no activation.
const NO_ACTIVATION: i32 = -1;

/// A depthwise convolution of each sequence's rows: `out[t][c] = act(bias[c] + Σ taps[i][c] * x[t - n_taps + 1 +
/// i][c])`, with zeros before the first row.
#[derive(Debug)]
pub struct ShortConv<'a, D: Device> {
    /// The weights, those of the oldest row first. `[1, n_taps * channels]`
    pub taps: Rows<'a, D>,
    /// Kernel size of the convolution.
    pub n_taps: usize,
    /// Added before the activation. `[1, channels]`
    pub bias: Option<Rows<'a, D>>,
    /// Activation of every element.
    pub act: Option<Activation>,
    /// The input. `[n_rows, channels]`
    pub x: Rows<'a, D>,
    /// The result, which must not overlap `x`. `[n_rows, channels]`
    pub out: Rows<'a, D>,
    /// States of the layer, of `(n_taps - 1) * channels` elements each.
    pub states: &'a StateLayer<D>,
    /// The states that are read and written.
    pub lists: StateLists<'a, D>,
}

/// Queues the convolution of all rows and stores the requested states. Rows without a sequence are skipped. A sequence
/// or slot that does not exist stops the device, which the next call that waits reports.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match, or there are more than 8 million channels.
pub fn short_conv<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    conv: &ShortConv<'_, D>,
) -> Result<(), Error> {
    let &ShortConv { taps, n_taps, bias, act, x, out, states, lists } = conv;
    let (n_rows, width) = (x.n_rows(), x.n_cols());
    assert!(n_taps > 0 && n_taps <= i32::MAX as usize, "{n_taps} taps");
    x.check(kernels, "x", n_rows, width);
    out.check(kernels, "out", n_rows, width);
    taps.check(kernels, "taps", 1, n_taps * width);
    if let Some(bias) = bias {
        bias.check(kernels, "bias", 1, width);
    }
    lists.check(kernels, n_rows, states, (n_taps - 1) * width);
    // Both kernels have the same bits.
    let is_aligned = x.is_aligned()
        && out.is_aligned()
        && taps.is_aligned()
        && bias.is_none_or(|bias| bias.is_aligned());
    let is_wide = is_aligned && width.is_multiple_of(4) && n_rows * width >= FOUR_FROM;
    let (function, per_thread) = match is_wide {
        false => (&kernels.recurrent.short_conv[0], 1),
        true => (&kernels.recurrent.short_conv[1], 4),
    };
    let [slots, slot_len, n_slots] = states.arguments();
    let arguments = [
        x.address(),
        x.stride(),
        taps.address(),
        optional(bias)[0],
        out.address(),
        out.stride(),
        slots,
        slot_len,
        n_slots,
        lists.seqs.address(),
        lists.seq_of_row.address(),
        lists.writes.address(),
        Argument::I32(lists.n_seqs as i32),
        Argument::I32(n_taps as i32),
        Argument::I32(width as i32),
        act.map_or(Argument::I32(NO_ACTIVATION), activation_argument),
    ];
    let n_blocks = width.div_ceil(per_thread * THREADS as usize);
    assert!(n_blocks <= 65535, "{width} channels");
    let grid = [n_rows as u32, n_blocks as u32, 1];
    // SAFETY: the arguments are those of `short_conv_*` in order; rows and lists lie inside their buffers and their
    // shapes were checked, and the kernel checks the lists' contents. As `matvec` says, buffers outlive queued work.
    unsafe { kernels.launch(stream, function, grid, [THREADS, 1], &arguments) }
}

#[cfg(any(test, feature = "tests"))]
pub(super) mod tests {
    use super::*;
    use crate::StateSpec;
    use crate::testing::{Random, StateWords, TestDevice, kernels, on_device, read};
    use realizar_ptx::Stream;

    const NONE: u32 = StateLists::<TestDevice>::NONE;
    const N_SLOTS: usize = 16;

    /// A convolution with random inputs.
    struct Case {
        kernels: Kernels<TestDevice>,
        stream: Stream,
        n_taps: usize,
        width: usize,
        n_rows: usize,
        act: Option<Activation>,
        x: Vec<f32>,       // [n_rows, width]
        vectors: Vec<f32>, // 4 unused, taps, bias
        states: StateLayer<TestDevice>,
    }

    impl Case {
        fn new(n_taps: usize, width: usize, n_rows: usize, act: Option<Activation>) -> Self {
            let (kernels, stream) = kernels();
            let mut random = Random(width as u64);
            let x = random.floats(n_rows * width);
            let vectors = random.floats(4 + (n_taps + 1) * width);
            let spec = StateSpec { len: (n_taps - 1) * width, n_slots: N_SLOTS };
            let states = StateLayer::new(kernels.device(), "states", spec).unwrap();
            Self { kernels, stream, n_taps, width, n_rows, act, x, vectors, states }
        }

        /// The definition, in F64.
        fn expected(&self) -> Vec<f64> {
            let n = self.width;
            let element = |i: usize| {
                let (t, c) = (i / n, i % n);
                let vector = |at: usize| f64::from(self.vectors[4 + at * n + c]);
                let product = |i: usize| {
                    let row = (t + 1 + i).checked_sub(self.n_taps)?;
                    Some(vector(i) * f64::from(self.x[row * n + c]))
                };
                let sum: f64 = (0..self.n_taps).filter_map(product).sum();
                match self.act {
                    None => sum,
                    Some(Activation::Silu) => {
                        let sum = sum + vector(self.n_taps);
                        sum / (1.0 + (-sum).exp())
                    }
                    Some(act) => panic!("no reference for {act:?}"),
                }
            };
            (0..self.x.len()).map(element).collect()
        }

        /// Runs the rows from `first` on as a batch of sequences, each given by its number of rows and the slot that it
        /// continues from. `writes` are pairs of a row of the batch and a slot.
        fn run(&self, first: usize, seqs: &[(usize, u32)], writes: &[(usize, u32)]) -> Vec<f32> {
            let (stream, device) = (&self.stream, self.kernels.device());
            let words = StateWords::new(device, stream, seqs, writes);
            let (n, n_rows) = (self.width, words.n_rows());
            let stride = n + 4;
            let mut x = vec![f32::NAN; 4 + n_rows * stride];
            for row in 0..n_rows - 1 {
                x[4 + row * stride..][..n].copy_from_slice(&self.x[(first + row) * n..][..n]);
            }
            let vectors = on_device(device, stream, &self.vectors);
            let (x, out) = (on_device(device, stream, &x), on_device(device, stream, &x));
            let has_bias = self.act.is_some();
            let conv = ShortConv {
                taps: Rows::vector_at(&vectors, 4, self.n_taps * n),
                n_taps: self.n_taps,
                bias: has_bias.then(|| Rows::vector_at(&vectors, 4 + self.n_taps * n, n)),
                act: self.act,
                x: Rows::new(&x, 4, n_rows, n, stride),
                out: Rows::new(&out, 4, n_rows, n, stride),
                states: &self.states,
                lists: words.lists(),
            };
            short_conv(&self.kernels, stream, &conv).unwrap();
            let found = read(stream, &out, 4 + n_rows * stride);
            let mut rows = found[4..].chunks(stride);
            let last = rows.next_back().unwrap();
            assert!(last.iter().all(|x| x.is_nan()), "a row of no sequence was written");
            let mut all = Vec::new();
            for row in rows {
                assert!(row[n..].iter().all(|x| x.is_nan()), "behind a row");
                all.extend(&row[..n]);
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

    #[cfg_attr(test, test)]
    fn a_convolution_is_its_sum_however_it_is_cut() {
        for (shape, act) in [
            ((3, 64, 9), None),
            ((4, 131, 11), Some(Activation::Silu)),
            ((1, 5, 4), None),
            ((2, 70, 6), Some(Activation::Silu)),
            ((6, 9, 13), None),
        ] {
            let (n_taps, width, n_rows) = shape;
            let case = Case::new(n_taps, width, n_rows, act);
            let n = case.n_rows;
            let whole = case.run(0, &[(n, NONE)], &[(n - 1, 0), (2, 1)]);
            for (i, (found, wanted)) in whole.iter().zip(case.expected()).enumerate() {
                let away = (f64::from(*found) - wanted).abs();
                assert!(away <= 1e-6 * wanted.abs().max(1.0), "{shape:?}, element {i}: {away:e}");
            }
            // A state is the last rows of the input, the oldest first.
            let kept = (case.n_taps - 1) * case.width;
            let rows_to = |end: usize| {
                let rows = [&vec![0.0; kept][..], &case.x[..end * case.width]].concat();
                rows[rows.len() - kept..].to_vec()
            };
            assert_eq!((case.state(0), case.state(1)), (rows_to(n), rows_to(3)), "{shape:?}");
            // In several steps, each of which continues from the state of the previous one.
            for cuts in [vec![1, 2, 3, n], vec![2, n], (1..=n).collect()] {
                let (mut found, mut from, mut start) = (Vec::new(), NONE, 0);
                for (i, end) in (2..).zip(cuts) {
                    let n = end - start;
                    found.extend(case.run(start, &[(n, from)], &[(n - 1, i)]));
                    (from, start) = (i, end);
                }
                assert_eq!(found, whole, "{shape:?} in steps");
            }
        }
    }

    #[cfg_attr(test, test)]
    fn sequences_of_a_batch_do_not_meet() {
        let case = Case::new(4, 40, 9, Some(Activation::Silu));
        case.run(0, &[(3, NONE)], &[(2, 0)]);
        let one = case.run(3, &[(2, 0)], &[]);
        let other = case.run(5, &[(3, 0)], &[]);
        let new = case.run(8, &[(1, NONE)], &[]);
        // Two sequences continue from one state, as forks do, one begins, and one has no rows.
        let seqs = [(2, 0), (0, 3), (3, 0), (1, NONE)];
        let together = case.run(3, &seqs, &[(1, 1), (4, 2), (5, 3)]);
        assert_eq!(together, [one, other, new].concat());
    }

    #[cfg_attr(test, test)]
    fn four_channels_of_a_thread_have_the_bits_of_one() {
        // Enough elements for the kernel with four per thread, and then too few.
        let n_rows = 40;
        let width = FOUR_FROM / n_rows / 4 * 4 + 4;
        let case = Case::new(3, width, n_rows, Some(Activation::Silu));
        let whole = case.run(0, &[(n_rows, NONE)], &[(n_rows - 3, 1)]);
        let first = case.run(0, &[(n_rows - 2, NONE)], &[(n_rows - 3, 0)]);
        let last = case.run(n_rows - 2, &[(2, 0)], &[]);
        assert!(case.state(0) == case.state(1), "the states");
        assert!([first, last].concat() == whole, "the rows");
    }

    #[cfg_attr(test, test)]
    fn every_activation_is_the_one_of_its_index() {
        for act in Activation::ALL {
            let case = Case::new(1, 40, 1, Some(act));
            let found = case.run(0, &[(1, NONE)], &[]);
            let plain = |i: usize| {
                let [tap, bias] = [4, 4 + 40].map(|at| f64::from(case.vectors[at + i]));
                bias + tap * f64::from(case.x[i])
            };
            for (i, found) in found.iter().enumerate() {
                let x = plain(i);
                let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
                let wanted = match act {
                    Activation::Silu => x * sigmoid(x),
                    Activation::GeluTanh => {
                        x * sigmoid(
                            2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x),
                        )
                    }
                    Activation::GeluQuick => x * sigmoid(1.702 * x),
                    Activation::Relu => x.max(0.0),
                    Activation::ReluSquared => x.max(0.0) * x.max(0.0),
                    Activation::Tanh => x.tanh(),
                    Activation::Sigmoid => sigmoid(x),
                    Activation::Mish => x * x.exp().ln_1p().tanh(),
                    // The power series, which is accurate enough for arguments of this size.
                    Activation::Gelu => {
                        let z = x / std::f64::consts::SQRT_2;
                        let (mut term, mut sum) = (z, z);
                        for n in 1..60 {
                            term *= -z * z / f64::from(n);
                            sum += term / f64::from(2 * n + 1);
                        }
                        x * (0.5 + sum / std::f64::consts::PI.sqrt())
                    }
                };
                assert!((f64::from(*found) - wanted).abs() < 1e-6, "{act:?} of {x}: {found}");
            }
        }
    }

    #[cfg_attr(test, test)]
    fn slots_and_sequences_that_do_not_exist_are_reported() {
        for (from, to) in [(16, NONE), (NONE, 16)] {
            let case = Case::new(2, 3, 2, None);
            let (stream, device) = (&case.stream, case.kernels.device());
            let words = StateWords::new(device, stream, &[(1, from)], &[(0, to)]);
            let x = on_device(device, stream, &[0.0f32; 16]);
            let rows = |at| Rows::new(&x, at, 2, 3, 3);
            let conv = ShortConv {
                taps: Rows::vector(&x, 6),
                n_taps: 2,
                bias: None,
                act: None,
                x: rows(0),
                out: rows(8),
                states: &case.states,
                lists: words.lists(),
            };
            short_conv(&case.kernels, stream, &conv).unwrap();
            let message = device.synchronize(stream).unwrap_err().to_string();
            assert!(message.contains("trap") && message.contains("short_conv_1"), "{message}");
        }
    }

    crate::testing::tests![
        a_convolution_is_its_sum_however_it_is_cut,
        sequences_of_a_batch_do_not_meet,
        four_channels_of_a_thread_have_the_bits_of_one,
        every_activation_is_the_one_of_its_index,
        slots_and_sequences_that_do_not_exist_are_reported,
    ];
}
