//! The gated delta rule (Yang et al., 2024, "Gated Delta Networks", arXiv:2412.06464): linear attention
//! whose state decays by a gate and replaces the value stored for a key.

use std::ops::Range;

use super::{LayerStates, StateSteps};
use crate::lanes::{self, Lanes};
use crate::{PerThread, Rows, RowsMut, Team, Tier, math};

/// Value columns per task, and width of the state's tiles in memory.
const TILE: usize = 64;
/// Value columns that are processed at a time. With keys of 128 elements, their part of a state takes
/// 16 KiB and stays in the L1 cache from row to row.
const COLS: usize = 2 * WIDE;
/// Columns per vector.
const WIDE: usize = 16;
/// `v_dim` is a multiple of this.
const LANES: usize = 8;
/// Number of rows whose keys and queries are normalized at a time.
const BLOCK: usize = 16;

/// Shape and constants of a gated delta rule. For each value head, with a state `S` of
/// `[k_dim, v_dim]`, normalized `q` and `k`, and `q` divided by the square root of `k_dim`:
///
/// ```text
/// S = exp(g) S                       g = a_log_decay * softplus(a + dt_bias)
/// S = S + k (sigmoid(b) (v - kᵀ S))
/// o = qᵀ S
/// ```
#[derive(Clone, Copy, Debug)]
pub struct DeltaNet<'a> {
    /// Number of key and query heads; each serves `n_v_heads / n_k_heads` value heads.
    pub n_k_heads: usize,
    /// Number of value heads.
    pub n_v_heads: usize,
    /// Elements per key.
    pub k_dim: usize,
    /// Elements per value, a multiple of 8.
    pub v_dim: usize,
    /// Added to the sum of squares in the normalization of keys and queries.
    pub eps: f32,
    /// Whether value head `h` uses key head `h % n_k_heads`, instead of `h / (n_v_heads / n_k_heads)`.
    pub tiled: bool,
    /// `a_log_decay` of the formula, `-exp(A_log)`; negative.
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
    /// Inputs of the decay gate `g`. `[n_v_heads]`
    pub a: Rows<'a>,
    /// Inputs of the write gate, before the sigmoid. `[n_v_heads]`
    pub b: Rows<'a>,
}

impl DeltaNet<'_> {
    /// Number of elements of the state.
    pub const fn state_len(&self) -> usize {
        self.n_v_heads * self.k_dim * self.v_dim
    }

    /// The key head that serves a value head.
    const fn key_head(&self, v_head: usize) -> usize {
        if self.tiled {
            v_head % self.n_k_heads
        } else {
            v_head / (self.n_v_heads / self.n_k_heads)
        }
    }

    /// The range of the state that holds a head's value columns `cols`, `[k_dim, columns]`.
    fn tile_of_state(&self, head: usize, cols: &Range<usize>) -> Range<usize> {
        let start = head * self.k_dim * self.v_dim + cols.start * self.k_dim;
        start..start + cols.len() * self.k_dim
    }

    /// Normalizes the queries and keys of a head's rows and computes their gates.
    fn prepare(
        &self,
        tier: Tier,
        inputs: &DeltaInputs<'_>,
        head: usize,
        rows: Range<usize>,
        keys: &mut [f32],                // [rows][query, key][k_dim]
        gates: &mut [(f32, f32); BLOCK], // of the decay and of the writing
    ) {
        let key_head = self.key_head(head);
        let cols = key_head * self.k_dim..(key_head + 1) * self.k_dim;
        let root = (self.k_dim as f32).sqrt().recip();
        let rows = rows.zip(keys.chunks_exact_mut(2 * self.k_dim).zip(gates));
        for (row, (keys, gates)) in rows {
            let (q, k) = keys.split_at_mut(self.k_dim);
            normalize(tier, &inputs.q.row(row)[cols.clone()], self.eps, root, q);
            normalize(tier, &inputs.k.row(row)[cols.clone()], self.eps, 1.0, k);
            let gate = softplus(inputs.a.row(row)[head] + self.dt_bias[head]);
            *gates = (math::exp(self.decay[head] * gate), math::sigmoid(inputs.b.row(row)[head]));
        }
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

/// Scratch memory per thread: a tile of a state, and the keys and queries of a block of rows.
#[derive(Debug)]
pub struct DeltaScratch(PerThread<Vec<f32>>);

impl DeltaScratch {
    /// Allocates for the threads of a team and keys of up to `max_k_dim` elements.
    pub fn new(team: &Team, max_k_dim: usize) -> Self {
        let len = max_k_dim * (TILE + 2 * BLOCK);
        Self(PerThread::new(team.n_threads(), |_| vec![0.0; len]))
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
        let (state, rest) = scratch.split_at_mut(net.k_dim * TILE);
        let keys = &mut rest[..2 * BLOCK * net.k_dim];
        match seq.from {
            Some(slot) => {
                // SAFETY: `StateSteps` has no slot that is read and written.
                let stored = unsafe { &states.read(slot)[place.clone()] };
                load_tile(stored, cols.len(), state);
            }
            None => state.fill(0.0),
        }
        let first = head * net.v_dim;
        let mut start = seq.rows.start;
        while start < seq.rows.end {
            // A block ends at a row whose state is written.
            let longest = start..seq.rows.end.min(start + BLOCK);
            let wanted = longest.clone().find(|&row| steps.write(row).is_some());
            let rows = start..wanted.map_or(longest.end, |row| row + 1);
            let mut gates = [(0.0, 0.0); BLOCK];
            net.prepare(tier, inputs, head, rows.clone(), keys, &mut gates);
            for (i, state) in state.chunks_exact_mut(COLS * net.k_dim).enumerate() {
                let from = first + cols.start + i * COLS;
                let cols = from..(from + COLS).min(first + cols.end);
                if cols.is_empty() {
                    break;
                }
                let v = inputs.v.slice_rows(rows.clone()).slice_cols(cols.clone());
                // SAFETY: a task has a tile of a head of its own sequence for itself.
                let out = unsafe { out.tile(rows.clone(), cols) };
                let gates = &gates[..rows.len()];
                lanes::dispatch(tier, Block { k_dim: net.k_dim, keys, gates, v, state, out });
            }
            if let Some(slot) = steps.write(rows.end - 1) {
                // SAFETY: no other row writes the slot, and no other task this part of it.
                let to = unsafe { states.write(slot, place.clone()) };
                store_tile(state, cols.len(), to);
            }
            start = rows.end;
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

/// `ln(1 + e^x)`, computed in f64.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { f64::from(x).exp().ln_1p() as f32 }
}

/// Loads a tile of a stored state, `[k_dim][width]`, to `[TILE / COLS][k_dim][COLS]`, padded with zeros.
fn load_tile(stored: &[f32], width: usize, state: &mut [f32]) {
    let k_dim = state.len() / TILE;
    for (i, part) in state.chunks_exact_mut(COLS * k_dim).enumerate() {
        let cols = (i * COLS).min(width)..((i + 1) * COLS).min(width);
        for (row, stored) in part.chunks_exact_mut(COLS).zip(stored.chunks_exact(width)) {
            let (kept, past) = row.split_at_mut(cols.len());
            kept.copy_from_slice(&stored[cols.clone()]);
            past.fill(0.0);
        }
    }
}

/// The inverse of [`load_tile`].
fn store_tile(state: &[f32], width: usize, stored: &mut [f32]) {
    let k_dim = state.len() / TILE;
    for (i, part) in state.chunks_exact(COLS * k_dim).enumerate() {
        let cols = (i * COLS).min(width)..((i + 1) * COLS).min(width);
        for (row, stored) in part.chunks_exact(COLS).zip(stored.chunks_exact_mut(width)) {
            stored[cols.clone()].copy_from_slice(&row[..cols.len()]);
        }
    }
}

/// Up to `COLS` columns of a head over the rows of a block.
///
/// A row decays the state, reads the value stored for its key, updates the state and computes its
/// output. One pass over the state updates it and computes the output of a row, and decays and reads it
/// for the next row, so each row reads and writes the state once. Each element is computed by the
/// operations of [`DeltaNet`] in their order, each rounded once, wherever blocks begin.
struct Block<'a> {
    k_dim: usize,
    keys: &'a [f32],         // [rows][query, key][k_dim]
    gates: &'a [(f32, f32)], // [rows], of the decay and of the writing
    v: Rows<'a>,             // [rows][columns]
    state: &'a mut [f32],    // [k_dim][COLS]
    out: RowsMut<'a>,        // [rows][columns]
}

impl lanes::Kernel for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { k_dim, keys, gates, v, state, mut out } = self;
        let state = state.as_chunks_mut::<WIDE>().0.as_chunks_mut::<2>().0;
        let keys_of = |row: usize| keys[2 * row * k_dim..][..2 * k_dim].split_at(k_dim);
        let zero = [l.splat16(0.0); 2];

        let mut known = zero;
        let decay = l.splat16(gates[0].0);
        for (s, &k) in state.iter_mut().zip(keys_of(0).1) {
            let k = l.splat16(k);
            for w in 0..2 {
                let forgot = l.mul16(l.load16(&s[w]), decay);
                known[w] = l.fma16(forgot, k, known[w]);
                l.store16(forgot, &mut s[w]);
            }
        }
        for (row, &(_, write)) in gates.iter().enumerate() {
            let (q, k) = keys_of(row);
            let v = v.row(row);
            let write = l.splat16(write);
            let mut delta = zero;
            for (w, delta) in delta.iter_mut().enumerate() {
                let v = lanes::load_from(l, v, (w * WIDE).min(v.len()));
                *delta = l.mul16(l.sub16(v, known[w]), write);
            }
            let mut answer = zero;
            known = zero;
            if let Some(&(decay, _)) = gates.get(row + 1) {
                let decay = l.splat16(decay);
                let next = keys_of(row + 1).1;
                for (s, (&q, (&k, &next))) in state.iter_mut().zip(q.iter().zip(k.iter().zip(next)))
                {
                    let (q, k, next) = (l.splat16(q), l.splat16(k), l.splat16(next));
                    for w in 0..2 {
                        let taken = l.fma16(delta[w], k, l.load16(&s[w]));
                        answer[w] = l.fma16(taken, q, answer[w]);
                        let forgot = l.mul16(taken, decay);
                        known[w] = l.fma16(forgot, next, known[w]);
                        l.store16(forgot, &mut s[w]);
                    }
                }
            } else {
                for (s, (&q, &k)) in state.iter_mut().zip(q.iter().zip(k)) {
                    let (q, k) = (l.splat16(q), l.splat16(k));
                    for w in 0..2 {
                        let taken = l.fma16(delta[w], k, l.load16(&s[w]));
                        answer[w] = l.fma16(taken, q, answer[w]);
                        l.store16(taken, &mut s[w]);
                    }
                }
            }
            let out = out.row_mut(row);
            for (w, &answer) in answer.iter().enumerate() {
                let at = (w * WIDE).min(out.len());
                lanes::store_to(l, answer, out, at);
            }
        }
    }
}
