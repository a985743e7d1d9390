//! The gated delta rule: linear attention whose state forgets by a gate and corrects what it has of a key
//! (Yang et al., 2024, "Gated Delta Networks", arXiv:2412.06464).

use std::ops::Range;

use super::{LayerStates, StateSteps};
use crate::{PerThread, Rows, RowsMut, Team, Tier, math};

/// Columns of values that are followed at a time.
const TILE: usize = 64;
/// Columns of a vector.
const LANES: usize = 8;

/// The shape and the constants of a gated delta rule. For each value head, with `S` of
/// `[k_dim, v_dim]`, normalized `q` and `k`, and `q` over the root of `k_dim`:
///
/// ```text
/// S = exp(g) S                       g = a_log_decay * softplus(a + dt_bias)
/// S = S + k (sigmoid(b) (v - kᵀ S))
/// o = qᵀ S
/// ```
#[derive(Clone, Copy, Debug)]
pub struct DeltaNet<'a> {
    /// Heads of keys and queries; each serves `n_v_heads / n_k_heads` heads of values.
    pub n_k_heads: usize,
    /// Heads of values.
    pub n_v_heads: usize,
    /// Elements of a key.
    pub k_dim: usize,
    /// Elements of a value, a multiple of 8.
    pub v_dim: usize,
    /// Added to the squares of keys and queries before they are normalized.
    pub eps: f32,
    /// Whether value head `h` uses key head `h % n_k_heads`, instead of `h / (n_v_heads / n_k_heads)`.
    pub tiled: bool,
    /// `-exp(A_log)`, which is negative.
    pub decay: &'a [f32], // [n_v_heads]
    /// Added to the gate.
    pub dt_bias: &'a [f32], // [n_v_heads]
}

/// The inputs of [`delta_net`]. `[n_rows, ...]`
#[derive(Clone, Copy, Debug)]
pub struct DeltaInputs<'a> {
    /// Queries. `[n_k_heads * k_dim]`
    pub q: Rows<'a>,
    /// Keys. `[n_k_heads * k_dim]`
    pub k: Rows<'a>,
    /// Values. `[n_v_heads * v_dim]`
    pub v: Rows<'a>,
    /// Gates of the decay. `[n_v_heads]`
    pub a: Rows<'a>,
    /// Gates of the writing, before the sigmoid. `[n_v_heads]`
    pub b: Rows<'a>,
}

impl DeltaNet<'_> {
    /// Elements of the state.
    pub const fn state_len(&self) -> usize {
        self.n_v_heads * self.k_dim * self.v_dim
    }

    /// The key head of a value head.
    const fn key_head(&self, v_head: usize) -> usize {
        if self.tiled {
            v_head % self.n_k_heads
        } else {
            v_head / (self.n_v_heads / self.n_k_heads)
        }
    }

    /// Where a tile of a head's values lies in the state, `[k_dim, columns]`.
    fn tile_of_state(&self, head: usize, cols: &Range<usize>) -> Range<usize> {
        let start = head * self.k_dim * self.v_dim + cols.start * self.k_dim;
        start..start + cols.len() * self.k_dim
    }

    fn check(&self, inputs: &DeltaInputs<'_>, out: &RowsMut<'_>) {
        let (k, v) = (self.n_k_heads * self.k_dim, self.n_v_heads * self.v_dim);
        assert!(self.n_k_heads > 0 && self.n_v_heads.is_multiple_of(self.n_k_heads), "heads");
        assert!(self.k_dim > 0 && self.v_dim.is_multiple_of(LANES), "elements of heads");
        assert_eq!(self.decay.len(), self.n_v_heads, "decays");
        assert_eq!(self.dt_bias.len(), self.n_v_heads, "biases of the decay");
        let DeltaInputs { q, k: keys, v: values, a, b } = inputs;
        let n_v = self.n_v_heads;
        for (x, n_cols) in [(q, k), (keys, k), (values, v), (a, n_v), (b, n_v)] {
            assert_eq!((x.n_rows(), x.n_cols()), (out.n_rows(), n_cols), "shape of an input");
        }
        assert_eq!(out.n_cols(), v, "columns of the output");
    }
}

/// What a thread works in: a tile of a state, a key and a query.
#[derive(Debug)]
pub struct DeltaScratch(PerThread<Vec<f32>>);

impl DeltaScratch {
    /// Scratch memory for the threads of a team, and keys of up to `max_k_dim` elements.
    pub fn new(team: &Team, max_k_dim: usize) -> Self {
        Self(PerThread::new(team.n_threads(), |_| vec![0.0; max_k_dim * (TILE + 2)]))
    }
}

/// Runs the rule over the rows of every sequence.
///
/// # Panics
/// If the shapes disagree, or `scratch` was made for a smaller team or shorter keys.
#[expect(clippy::too_many_arguments, reason = "what runs, on what, with which states")]
#[expect(clippy::needless_pass_by_value, reason = "the view must be exclusive for the call")]
pub fn delta_net(
    team: &Team,
    tier: Tier,
    net: &DeltaNet<'_>,
    inputs: &DeltaInputs<'_>,
    out: RowsMut<'_>, // [n_rows, n_v_heads * v_dim]
    steps: &StateSteps,
    states: &LayerStates<'_>,
    scratch: &DeltaScratch,
) {
    net.check(inputs, &out);
    assert_eq!(steps.writes.len(), out.n_rows(), "rows of the batch");
    states.check(steps, net.state_len());
    let n_tiles = net.v_dim.div_ceil(TILE);
    let per_seq = net.n_v_heads * n_tiles;
    team.parallel_for(steps.seqs.len() * per_seq, &|task, thread| {
        let seq = &steps.seqs[task / per_seq];
        let (head, tile) = (task % per_seq / n_tiles, task % n_tiles);
        let cols = tile * TILE..net.v_dim.min((tile + 1) * TILE);
        let place = net.tile_of_state(head, &cols);
        let mut scratch = scratch.0.get(thread);
        let (state, rest) = scratch.split_at_mut(place.len());
        let (q, rest) = rest.split_at_mut(net.k_dim);
        let k = &mut rest[..net.k_dim];
        match seq.from {
            // SAFETY: `StateSteps` has no slot that is read and written.
            Some(slot) => state.copy_from_slice(unsafe { &states.read(slot)[place.clone()] }),
            None => state.fill(0.0),
        }
        let first = head * net.v_dim;
        let out_cols = first + cols.start..first + cols.end;
        for row in seq.rows.clone() {
            let key_head = net.key_head(head);
            let key_cols = key_head * net.k_dim..(key_head + 1) * net.k_dim;
            let root = (net.k_dim as f32).sqrt().recip();
            normalize(tier, &inputs.q.row(row)[key_cols.clone()], net.eps, root, q);
            normalize(tier, &inputs.k.row(row)[key_cols], net.eps, 1.0, k);
            let gate = softplus(inputs.a.row(row)[head] + net.dt_bias[head]);
            let gates = (math::exp(net.decay[head] * gate), math::sigmoid(inputs.b.row(row)[head]));
            let v = &inputs.v.row(row)[out_cols.clone()];
            // SAFETY: a task has a tile of a head of its own sequence for itself.
            let mut out = unsafe { out.tile(row..row + 1, out_cols.clone()) };
            advance(tier, state, (q, k), v, gates, out.row_mut(0));
            if let Some(slot) = steps.write(row) {
                // SAFETY: no other row writes the slot, and no other task this part of it.
                unsafe { states.write(slot, place.clone()) }.copy_from_slice(state);
            }
        }
    });
}

/// `out = x / sqrt(Σ x² + eps) * factor`
fn normalize(tier: Tier, x: &[f32], eps: f32, factor: f32, out: &mut [f32]) {
    let squares = crate::norm::sum_of_squares(tier, x) as f32;
    let factor = (squares + eps).sqrt().recip() * factor;
    for (out, x) in out.iter_mut().zip(x) {
        *out = x * factor;
    }
}

/// `ln(1 + e^x)`, by f64.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { f64::from(x).exp().ln_1p() as f32 }
}

/// One row: the state forgets, takes up the value for the key, and answers the query.
fn advance(
    tier: Tier,
    state: &mut [f32],        // [k_dim][v.len()]
    (q, k): (&[f32], &[f32]), // [k_dim]
    v: &[f32],                // a tile of the head's value
    (decay, write): (f32, f32),
    out: &mut [f32], // [v.len()]
) {
    match tier.avx2() {
        None => advance_tile(state, (q, k), v, (decay, write), out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token of this tier exists only if its instructions were detected.
        Some(_) => unsafe { advance_avx2(state, (q, k), v, (decay, write), out) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn advance_avx2(
    state: &mut [f32],
    qk: (&[f32], &[f32]),
    v: &[f32],
    gates: (f32, f32),
    out: &mut [f32],
) {
    advance_tile(state, qk, v, gates, out);
}

/// The code of all tiers, of whose operations each is rounded once.
#[inline(always)]
fn advance_tile(
    state: &mut [f32],
    qk: (&[f32], &[f32]),
    v: &[f32],
    gates: (f32, f32),
    out: &mut [f32],
) {
    let (vs, outs) = (v.as_chunks::<LANES>().0, out.as_chunks_mut::<LANES>().0);
    let width = vs.len();
    let state = state.as_chunks_mut::<LANES>().0;
    let mut first = 0;
    while first < width {
        // As many columns as hide the latency of a chain of multiply-adds.
        if width - first >= 8 {
            advance_columns::<8>(state, width, first, qk, vs, gates, outs);
            first += 8;
        } else {
            advance_columns::<1>(state, width, first, qk, vs, gates, outs);
            first += 1;
        }
    }
}

/// `W` vectors of columns from vector `first` on.
#[inline(always)]
fn advance_columns<const W: usize>(
    state: &mut [[f32; LANES]], // [k_dim][width]
    width: usize,
    first: usize,
    (q, k): (&[f32], &[f32]),
    v: &[[f32; LANES]],
    (decay, write): (f32, f32),
    out: &mut [[f32; LANES]],
) {
    let mut known = [[0.0; LANES]; W];
    for (state, &k) in state.chunks_exact_mut(width).zip(k) {
        let state: &mut [[f32; LANES]; W] =
            (&mut state[first..first + W]).try_into().expect("W vectors");
        for w in 0..W {
            for i in 0..LANES {
                state[w][i] *= decay;
                known[w][i] = state[w][i].mul_add(k, known[w][i]);
            }
        }
    }
    let mut delta = [[0.0; LANES]; W];
    for w in 0..W {
        for i in 0..LANES {
            delta[w][i] = (v[first + w][i] - known[w][i]) * write;
        }
    }
    let mut answer = [[0.0; LANES]; W];
    for (state, (&q, &k)) in state.chunks_exact_mut(width).zip(q.iter().zip(k)) {
        let state: &mut [[f32; LANES]; W] =
            (&mut state[first..first + W]).try_into().expect("W vectors");
        for w in 0..W {
            for i in 0..LANES {
                state[w][i] = delta[w][i].mul_add(k, state[w][i]);
                answer[w][i] = state[w][i].mul_add(q, answer[w][i]);
            }
        }
    }
    out[first..first + W].copy_from_slice(&answer);
}
