//! Both operations against loops in f64, and what cutting, sharing and keeping of states must not change.

use super::*;
use crate::testing::random;
use crate::{Activation, Rows, RowsMut, Team, Tier};

/// One layer's states in slots with room before and after them.
struct Slots {
    data: Vec<f32>,
    len: usize,
}

const N_SLOTS: usize = 24;
const AT: usize = 5;

impl Slots {
    fn new(len: usize) -> Self {
        Self { data: vec![f32::NAN; N_SLOTS * (len + AT + 3)], len }
    }

    fn layer(&mut self) -> LayerStates<'_> {
        LayerStates::new(&mut self.data, self.len + AT + 3, AT, self.len)
    }

    fn get(&self, slot: usize) -> &[f32] {
        &self.data[slot * (self.len + AT + 3) + AT..][..self.len]
    }
}

/// Rows of one sequence that continues from `from`, with the states after the rows in `writes`.
fn steps(n_rows: usize, from: Option<u32>, writes: &[(usize, u32)]) -> StateSteps {
    let mut slots = vec![NO_STATE; n_rows];
    writes.iter().for_each(|&(row, slot)| slots[row] = slot);
    let mut steps = StateSteps::with_capacity(n_rows);
    steps.fill([StateSeq { rows: 0..n_rows, from }], slots, N_SLOTS);
    steps
}

fn assert_close(got: &[f32], want: &[f64], what: &str) {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(0.0_f64, |m, x| m.max(x.abs()));
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(got) - want).abs();
        assert!(error <= 2e-6 * largest, "{what}, element {i}: {got} for {want}");
    }
}

const CHANNELS: usize = 37;
const TAPS: usize = 4;

fn run_conv(
    tier: Tier,
    x: &[f32],
    w: &[f32],
    bias: &[f32],
    slots: &mut Slots,
    cuts: &[usize],
) -> Vec<f32> {
    let team = Team::new(2);
    let conv = ShortConv { taps: w, bias: Some(bias), act: Some(Activation::Silu) };
    let mut out = vec![0.0; x.len()];
    let (mut from, mut start) = (None, 0);
    for (i, &end) in cuts.iter().enumerate() {
        let n = end - start;
        let steps = steps(n, from, &[(n - 1, i as u32)]);
        short_conv(
            &team,
            tier,
            &conv,
            Rows::new(&x[start * CHANNELS..end * CHANNELS], n, CHANNELS),
            RowsMut::new(&mut out[start * CHANNELS..end * CHANNELS], n, CHANNELS),
            &steps,
            &slots.layer(),
        );
        (from, start) = (Some(i as u32), end);
    }
    out
}

#[test]
fn a_convolution_is_its_sum_however_it_is_cut() {
    let mut seed = 3;
    let n = 11;
    let x = random(&mut seed, n * CHANNELS);
    let (w, bias) = (random(&mut seed, TAPS * CHANNELS), random(&mut seed, CHANNELS));
    let want: Vec<f64> = (0..n * CHANNELS)
        .map(|i| {
            let (t, c) = (i / CHANNELS, i % CHANNELS);
            let taps = (0..TAPS).filter(|back| t >= *back).map(|back| {
                let (w, x) = (w[(TAPS - 1 - back) * CHANNELS + c], x[(t - back) * CHANNELS + c]);
                f64::from(w) * f64::from(x)
            });
            let sum = f64::from(bias[c]) + taps.sum::<f64>();
            sum / (1.0 + (-sum).exp())
        })
        .collect();
    for tier in Tier::available() {
        let mut slots = Slots::new(ShortConv::state_len(TAPS, CHANNELS));
        let whole = run_conv(tier, &x, &w, &bias, &mut slots, &[n]);
        assert_close(&whole, &want, tier.name());
        // The last three rows, the oldest first.
        assert_eq!(slots.get(0), &x[(n - 3) * CHANNELS..]);
        for cuts in [vec![1, 2, 3, 4, 11], vec![2, 7, 8, 11], (1..=n).collect()] {
            let mut slots = Slots::new(ShortConv::state_len(TAPS, CHANNELS));
            assert_eq!(run_conv(tier, &x, &w, &bias, &mut slots, &cuts), whole, "{tier}, {cuts:?}");
            assert_eq!(slots.get(cuts.len() - 1), &x[(n - 3) * CHANNELS..]);
        }
    }
}

/// A rule with random inputs.
struct Case {
    n_k_heads: usize,
    n_v_heads: usize,
    k_dim: usize,
    v_dim: usize,
    tiled: bool,
    n_rows: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    a: Vec<f32>,
    b: Vec<f32>,
    decay: Vec<f32>,
    dt_bias: Vec<f32>,
}

impl Case {
    fn new([n_k_heads, n_v_heads, k_dim, v_dim]: [usize; 4], tiled: bool, n_rows: usize) -> Self {
        let mut seed = 7;
        let mut values = |n| random(&mut seed, n);
        Self {
            q: values(n_rows * n_k_heads * k_dim),
            k: values(n_rows * n_k_heads * k_dim),
            v: values(n_rows * n_v_heads * v_dim),
            a: values(n_rows * n_v_heads),
            b: values(n_rows * n_v_heads),
            decay: values(n_v_heads).iter().map(|x| -x.abs() * 0.3).collect(),
            dt_bias: values(n_v_heads),
            n_k_heads,
            n_v_heads,
            k_dim,
            v_dim,
            tiled,
            n_rows,
        }
    }

    fn net(&self) -> DeltaNet<'_> {
        DeltaNet {
            n_k_heads: self.n_k_heads,
            n_v_heads: self.n_v_heads,
            k_dim: self.k_dim,
            v_dim: self.v_dim,
            eps: 1e-6,
            tiled: self.tiled,
            decay: &self.decay,
            dt_bias: &self.dt_bias,
        }
    }

    /// The definition, in f64.
    fn expected(&self) -> Vec<f64> {
        let Self { n_k_heads, n_v_heads, k_dim, v_dim, .. } = *self;
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let unit = |x: Vec<f64>| {
            let norm = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
            x.into_iter().map(|x| x / norm).collect::<Vec<_>>()
        };
        let mut out = Vec::new();
        let mut states = vec![vec![0.0; k_dim * v_dim]; n_v_heads];
        for t in 0..self.n_rows {
            for (h, state) in states.iter_mut().enumerate() {
                let kh = if self.tiled { h % n_k_heads } else { h / (n_v_heads / n_k_heads) };
                let at = (t * n_k_heads + kh) * k_dim;
                let (q, k) =
                    (unit(wide(&self.q[at..at + k_dim])), unit(wide(&self.k[at..at + k_dim])));
                let v = wide(&self.v[(t * n_v_heads + h) * v_dim..][..v_dim]);
                let gate = f64::from(self.a[t * n_v_heads + h]) + f64::from(self.dt_bias[h]);
                let decay = (f64::from(self.decay[h]) * gate.exp().ln_1p()).exp();
                let write = 1.0 / (1.0 + (-f64::from(self.b[t * n_v_heads + h])).exp());
                state.iter_mut().for_each(|s| *s *= decay);
                for j in 0..v_dim {
                    let known: f64 = (0..k_dim).map(|i| k[i] * state[i * v_dim + j]).sum();
                    let delta = (v[j] - known) * write;
                    (0..k_dim).for_each(|i| state[i * v_dim + j] += k[i] * delta);
                    let answer: f64 = (0..k_dim).map(|i| q[i] * state[i * v_dim + j]).sum();
                    out.push(answer / (k_dim as f64).sqrt());
                }
            }
        }
        out
    }

    /// Rows `range` from a state, with the states after some rows.
    fn run(
        &self,
        tier: Tier,
        range: std::ops::Range<usize>,
        (from, writes): (Option<u32>, &[(usize, u32)]),
        slots: &mut Slots,
    ) -> Vec<f32> {
        let team = Team::new(2);
        let n = range.len();
        let rows = |x: &[f32]| {
            let width = x.len() / self.n_rows;
            x[range.start * width..range.end * width].to_vec()
        };
        let [q, k, v, a, b] = [&self.q, &self.k, &self.v, &self.a, &self.b].map(|x| rows(x));
        let view = |x: &'_ [f32]| -> usize { x.len() / n };
        let inputs = DeltaInputs {
            q: Rows::new(&q, n, view(&q)),
            k: Rows::new(&k, n, view(&k)),
            v: Rows::new(&v, n, view(&v)),
            a: Rows::new(&a, n, view(&a)),
            b: Rows::new(&b, n, view(&b)),
        };
        let mut out = vec![0.0; v.len()];
        let steps = steps(n, from, writes);
        delta_net(
            &team,
            tier,
            &self.net(),
            &inputs,
            RowsMut::new(&mut out, n, view(&v)),
            &steps,
            &slots.layer(),
            &DeltaScratch::new(&team, self.k_dim),
        );
        out
    }
}

#[test]
fn the_delta_rule_is_its_definition() {
    for (shape, tiled) in [
        ([1, 1, 8, 8], false),
        ([2, 4, 16, 24], false),
        ([2, 4, 16, 24], true),
        ([2, 2, 128, 128], false),
        ([1, 3, 20, 72], false),
    ] {
        let case = Case::new(shape, tiled, 19);
        let want = case.expected();
        for tier in Tier::available() {
            let mut slots = Slots::new(case.net().state_len());
            let got = case.run(tier, 0..19, (None, &[]), &mut slots);
            assert_close(&got, &want, &format!("{shape:?} on {tier}"));
        }
    }
}

#[test]
fn cuts_and_kept_states_do_not_change_the_delta_rule() {
    let case = Case::new([2, 4, 16, 72], false, 12);
    for tier in Tier::available() {
        let mut slots = Slots::new(case.net().state_len());
        let whole = case.run(tier, 0..12, (None, &[(3, 1), (7, 2), (11, 3)]), &mut slots);
        let width = whole.len() / 12;
        // From each of the states that were kept on the way.
        for (row, slot) in [(4, 1), (8, 2)] {
            let rest = case.run(tier, row..12, (Some(slot), &[(11 - row, 4)]), &mut slots);
            assert_eq!(rest, whole[row * width..], "{tier}, from row {row}");
            assert_eq!(slots.get(4), slots.get(3));
        }
        // Row by row.
        let mut by_rows = Vec::new();
        for row in 0..12_u32 {
            let from = row.checked_sub(1).map(|before| 5 + before);
            let range = row as usize..row as usize + 1;
            by_rows.extend(case.run(tier, range, (from, &[(0, 5 + row)]), &mut slots));
        }
        assert_eq!(by_rows, whole, "{tier}");
    }
}

#[test]
fn sequences_of_a_batch_do_not_meet() {
    let case = Case::new([1, 2, 8, 16], false, 6);
    let tier = Tier::detect();
    let team = Team::new(2);
    let mut slots = Slots::new(case.net().state_len());
    case.run(tier, 0..2, (None, &[(1, 0)]), &mut slots);
    let first = case.run(tier, 2..4, (Some(0), &[]), &mut slots);
    let second = case.run(tier, 4..6, (Some(0), &[]), &mut slots);
    // Both continue from one state, as forks do, in one batch.
    let width = first.len() / 2;
    let part = |x: &[f32]| x[2 * x.len() / 6..].to_vec();
    let [q, k, v, a, b] = [&case.q, &case.k, &case.v, &case.a, &case.b].map(|x| part(x));
    let inputs = DeltaInputs {
        q: Rows::new(&q, 4, 8),
        k: Rows::new(&k, 4, 8),
        v: Rows::new(&v, 4, 32),
        a: Rows::new(&a, 4, 2),
        b: Rows::new(&b, 4, 2),
    };
    let seqs = [StateSeq { rows: 0..2, from: Some(0) }, StateSeq { rows: 2..4, from: Some(0) }];
    let mut steps = StateSteps::default();
    steps.fill(seqs, [NO_STATE, 1, NO_STATE, 2], N_SLOTS);
    let mut out = vec![0.0; 4 * width];
    delta_net(
        &team,
        tier,
        &case.net(),
        &inputs,
        RowsMut::new(&mut out, 4, width),
        &steps,
        &slots.layer(),
        &DeltaScratch::new(&team, 8),
    );
    assert_eq!(out, [first, second].concat());
}

#[test]
#[should_panic(expected = "slot 3 is read and written")]
fn a_state_is_not_written_over() {
    steps(2, Some(3), &[(1, 3)]);
}

#[test]
#[should_panic(expected = "slot 3 is written twice")]
fn a_state_has_one_row() {
    steps(2, None, &[(0, 3), (1, 3)]);
}
