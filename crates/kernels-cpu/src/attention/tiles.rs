//! Attention of prefill rows on BF16 tiles; `prefill` computes the same in F32.
//!
//! A task is a block of queries of one sequence and KV head. For each range of positions, cut as in
//! `prefill`, keys and values are packed to tiles once. Then 32 queries at a time compute scores, the
//! softmax in F32, and weighted values.
//!
//! An error of a score becomes a relative error of its weight, so it must be small compared to 1 even
//! if queries and keys are large. Queries and keys are therefore split into two BF16 each, 16 bits
//! together, and the three larger of the four products are computed. Weights and values are rounded to
//! BF16 once; their sums are F32.

use std::ops::Range;

use super::element::{Element, with_element};
use super::pack::{pack_row, pack_values, pack_values_of, split_keys, split_row};
use super::prefill::{Task, load_any};
use super::softmax::{Alibi, Running, ScoreScale};
use super::{kv_row, seen};
use crate::lanes::{Kernel, Lanes, dispatch};
use crate::tiles::{
    PAIR_LEN, Product, STEP_LEN, SplitPair, SplitProduct, TILE_LEN, TilePair, Tiles,
};
use crate::{Pages, Rows, RowsMut, Tier};

/// Positions that are packed at a time.
pub(super) const N_KEYS: usize = 128;
/// Steps of a product over these positions, one pair of tiles each.
pub(super) const KEY_STEPS: usize = N_KEYS / STEP_LEN;

/// Maximum number of queries of a block. With heads of 64 elements, so many take 256 KiB, and packing
/// keys and values is a small part of the work.
const MAX_QUERIES: usize = 384;
/// Minimum number of queries of a block.
const MIN_QUERIES: usize = 96;

/// Rows of a sequence per block, so that the `n_queries` queries of a KV head make at least `n_tasks`
/// tasks.
pub(super) fn block_rows(group: usize, n_queries: usize, n_tasks: usize) -> usize {
    let len = n_queries.div_ceil(n_tasks.max(1)).clamp(MIN_QUERIES, MAX_QUERIES);
    (len / group).max(1)
}

/// One thread's memory for a block and a range of positions.
#[derive(Debug)]
pub(super) struct Block {
    tiles: Pages,            // of the fields of `Parts`, one after the other
    floats: Vec<f32>,        // [N_KEYS, padded head_dim], keys or values before they are tiles
    scores: Vec<f32>,        // [PAIR_LEN, N_KEYS]
    acc: Vec<f32>,           // [n_queries, head_dim], weighted sums of values
    running: Vec<Running>,   // [n_queries]
    seen: Vec<Range<usize>>, // [n_queries], positions that a query sees
    max_queries: usize,
}

/// The operands of a block, in tiles.
struct Parts<'a> {
    q: &'a mut [SplitPair],      // [n_queries / 32, n_steps]
    k: &'a mut [SplitPair],      // [KEY_STEPS, n_steps]
    v: &'a mut [TilePair],       // [head_dim / 32, KEY_STEPS]
    weights: &'a mut [TilePair], // [KEY_STEPS]
}

/// Number of tile pairs of each of the [`Parts`], for heads of `head_dim` elements.
const fn part_lens(max_queries: usize, head_dim: usize) -> [usize; 4] {
    let n_steps = head_dim.div_ceil(STEP_LEN);
    let q = max_queries.div_ceil(PAIR_LEN) * n_steps;
    [q, KEY_STEPS * n_steps, n_steps * KEY_STEPS, KEY_STEPS]
}

impl Block {
    /// Allocates for heads and groups of up to these sizes.
    ///
    /// # Panics
    /// If there is too little memory, as for all memory of attention.
    pub(super) fn new(max_head_dim: usize, max_group: usize) -> Self {
        let max_queries = max_group.max(MAX_QUERIES);
        let [q, k, v, weights] = part_lens(max_queries, max_head_dim);
        let n_pairs = 2 * q + 2 * k + v + weights;
        let head_len = max_head_dim.next_multiple_of(STEP_LEN);
        Self {
            tiles: Pages::zeroed(n_pairs * size_of::<TilePair>()).expect("memory of attention"),
            floats: vec![0.0; N_KEYS * head_len],
            scores: vec![0.0; PAIR_LEN * N_KEYS],
            acc: vec![0.0; max_queries * max_head_dim],
            running: vec![Running::new(None); max_queries],
            seen: vec![0..0; max_queries],
            max_queries,
        }
    }
}

/// Splits the first `n` elements off a slice.
fn take<'a, T>(from: &mut &'a mut [T], n: usize) -> &'a mut [T] {
    from.split_off_mut(..n).expect("the block is large enough")
}

/// A task of `prefill`, with the implementation of its tile products.
pub(super) struct TileTask<'a, T> {
    pub(super) task: Task<'a>,
    pub(super) tiles: T,
}

impl<T: Tiles> TileTask<'_, T> {
    pub(super) fn run(
        &self,
        block: &mut Block,
        q: Rows<'_>,          // [n_rows, group * head_dim]
        mut out: RowsMut<'_>, // [n_rows, group * head_dim]
    ) {
        let Task { params, seq, kv_head, rows, .. } = &self.task;
        let head_dim = params.head_dim;
        let group = params.n_heads / params.n_kv_heads;
        let scale = ScoreScale::new(params.scale, params.softcap);
        let n_queries = rows.len() * group;
        assert!(n_queries <= block.max_queries, "{n_queries} queries of a block");
        let n_steps = head_dim.div_ceil(STEP_LEN);
        let Block { tiles, floats, scores, acc, running, seen: positions, .. } = block;
        let mut free: &mut [TilePair] = bytemuck::cast_slice_mut(tiles);
        let [n_q, n_k, n_v, n_weights] = part_lens(n_queries, head_dim);
        let mut parts = Parts {
            q: bytemuck::cast_slice_mut(take(&mut free, 2 * n_q)),
            k: bytemuck::cast_slice_mut(take(&mut free, 2 * n_k)),
            v: take(&mut free, n_v),
            weights: take(&mut free, n_weights),
        };

        // Queries are ordered by row, then head, so their positions ascend.
        for (i, q) in q.iter().flat_map(|row| row.chunks_exact(head_dim)).enumerate() {
            let pairs = i / PAIR_LEN * n_steps..(i / PAIR_LEN + 1) * n_steps;
            split_row(self.task.tier, q, scale.q, i % PAIR_LEN, &mut parts.q[pairs]);
        }
        acc[..n_queries * head_dim].fill(0.0);
        for (i, running) in running[..n_queries].iter_mut().enumerate() {
            let head = kv_head * group + i % group;
            *running = Running::new(params.sinks.map(|sinks| sinks[head]));
        }
        for (row, positions) in rows.clone().zip(positions.chunks_exact_mut(group)) {
            positions.fill(seen(params, seq, row));
        }

        // Both ends of the range that a row sees ascend with its position.
        let start = seen(params, seq, rows.start).start;
        let end = seen(params, seq, rows.end - 1).end;
        let slopes = params.alibi.map(|slopes| &slopes[kv_head * group..][..group]);
        let first_query = seq.first_pos + (rows.start - seq.rows.start);
        for tile_idx in start / N_KEYS..end.div_ceil(N_KEYS) {
            let first_pos = tile_idx * N_KEYS;
            let alibi = slopes.map(|slopes| Alibi::new(slopes, first_pos, first_query));
            let in_tile = |pos: usize| pos.saturating_sub(first_pos).min(N_KEYS);
            let keys = in_tile(start)..in_tile(end);
            let is_finite = self.load(&mut parts, floats, first_pos, keys);
            for first in (0..n_queries).step_by(PAIR_LEN) {
                let n = PAIR_LEN.min(n_queries - first);
                let mut seen = [const { 0..0 }; PAIR_LEN];
                for (keys, positions) in seen.iter_mut().zip(&positions[first..first + n]) {
                    *keys = in_tile(positions.start)..in_tile(positions.end);
                }
                let mut queries = Queries {
                    tiles: self.tiles,
                    tier: self.task.tier,
                    head_dim,
                    scale,
                    alibi: alibi.map(|alibi| (alibi, first)),
                    q: &parts.q[first / PAIR_LEN * n_steps..][..n_steps],
                    k: &*parts.k,
                    weights: &mut *parts.weights,
                    scores: &mut *scores,
                    seen: &seen[..n],
                    running: &mut running[first..first + n],
                    acc: &mut acc[first * head_dim..(first + n) * head_dim],
                };
                let Some(steps) = queries.weigh() else { continue };
                if is_finite {
                    queries.accumulate(&(0..n), &steps, parts.v);
                } else {
                    queries.accumulate_apart(&steps, parts.v, floats);
                }
            }
        }

        for i in 0..rows.len() {
            for (j, out) in out.row_mut(i).chunks_exact_mut(head_dim).enumerate() {
                let query = i * group + j;
                let inv = 1.0 / running[query].sum;
                let acc = &acc[query * head_dim..][..head_dim];
                // Adding 0 clears the sign of zeros, which may depend on values that the query does not see.
                out.iter_mut().zip(acc).for_each(|(out, acc)| *out = acc * inv + 0.0);
            }
        }
    }

    /// Packs the keys and values that some query sees to tiles, and zeros around them. Leaves the values
    /// in `floats`; returns whether all are finite.
    fn load(
        &self,
        parts: &mut Parts<'_>,
        floats: &mut [f32],
        first_pos: usize,
        keys: Range<usize>,
    ) -> bool {
        let tier = self.task.tier;
        let head_len = self.task.params.head_dim.next_multiple_of(STEP_LEN);
        let n_steps = head_len / STEP_LEN;
        let floats = &mut floats[..N_KEYS * head_len];
        self.widen(floats, first_pos, keys.clone(), 0);
        for (i, keys) in floats.chunks_exact(TILE_LEN * head_len).enumerate() {
            let pairs = i / 2 * n_steps..(i / 2 + 1) * n_steps;
            split_keys(tier, keys, i % 2, &mut parts.k[pairs]);
        }
        let is_finite = self.widen(floats, first_pos, keys, self.task.geo.v_offset_from_k());
        pack_values(tier, floats, parts.v);
        is_finite
    }

    /// Widens the heads that begin `offset` bytes from the keys of a range, with zeros around them.
    /// Returns whether all values are finite.
    fn widen(
        &self,
        floats: &mut [f32], // [N_KEYS, padded head_dim]
        first_pos: usize,
        keys: Range<usize>,
        offset: isize,
    ) -> bool {
        let Task { tier, params, geo, memory, seq, kv_head, .. } = &self.task;
        let mut heads: [Option<&[u8]>; N_KEYS] = [None; N_KEYS];
        for key in keys {
            let start = kv_row(geo, seq, *kv_head, first_pos + key).wrapping_add_signed(offset);
            heads[key] = Some(&memory[start..][..geo.head_bytes()]);
        }
        with_element!(geo.ty(), E => {
            let rows = WidenRows::<E> {
                heads,
                head_dim: params.head_dim,
                out: floats,
                ty: std::marker::PhantomData,
            };
            dispatch(*tier, rows)
        })
    }
}

/// Widens heads to rows of F32. Returns whether all values are finite.
struct WidenRows<'a, E> {
    heads: [Option<&'a [u8]>; N_KEYS], // zeros where there is none
    head_dim: usize,
    out: &'a mut [f32], // [N_KEYS, padded head_dim]
    ty: std::marker::PhantomData<E>,
}

impl<E: Element> Kernel for WidenRows<'_, E> {
    type Output = bool;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> bool {
        let head_len = self.out.len() / N_KEYS;
        let n_vectors = self.head_dim.div_ceil(8);
        // A value times zero is zero, or NaN if the value is not finite.
        let zero = l.splat(0.0);
        let mut products = zero;
        for (head, out) in self.heads.iter().zip(self.out.chunks_exact_mut(head_len)) {
            let Some(head) = head else {
                out.fill(0.0);
                continue;
            };
            let (vectors, padding) = out.as_chunks_mut::<8>().0.split_at_mut(n_vectors);
            for (i, out) in vectors.iter_mut().enumerate() {
                // SAFETY: the slice is a stored head of `head_dim` elements.
                let x = unsafe { load_any::<L, E>(l, head.as_ptr(), i, self.head_dim) };
                products = l.fma(x, zero, products);
                l.store(x, out);
            }
            padding.as_flattened_mut().fill(0.0);
        }
        l.sum(products) == 0.0
    }
}

/// The products of up to 32 queries with a range of positions.
struct Queries<'a, T> {
    tiles: T,
    tier: Tier,
    head_dim: usize,
    scale: ScoreScale,
    alibi: Option<(Alibi<'a>, usize)>, // and the first query
    q: &'a [SplitPair],                // [n_steps]
    k: &'a [SplitPair],                // [KEY_STEPS, n_steps]
    weights: &'a mut [TilePair],       // [KEY_STEPS]
    scores: &'a mut [f32],             // [PAIR_LEN, N_KEYS], then the weights
    seen: &'a [Range<usize>],          // [n]
    running: &'a mut [Running],        // [n]
    acc: &'a mut [f32],                // [n, head_dim]
}

impl<T: Tiles> Queries<'_, T> {
    /// Computes the weights of the keys that the queries see, with zeros around them, and rescales the sums
    /// if the maximum grew. Returns the steps with positions that some query sees; `None` if there are
    /// none.
    fn weigh(&mut self) -> Option<Range<usize>> {
        let seeing = || self.seen.iter().filter(|seen| !seen.is_empty());
        let start = seeing().map(|seen| seen.start).min()?;
        let end = seeing().map(|seen| seen.end).max()?;
        let steps = start / STEP_LEN..end.div_ceil(STEP_LEN);
        let keys = steps.start * STEP_LEN..steps.end * STEP_LEN;
        let n_steps = self.q.len();
        let k = &self.k[steps.start * n_steps..steps.end * n_steps];
        let n = self.seen.len();
        let mut scores = RowsMut::new(&mut self.scores[..n * N_KEYS], n, N_KEYS);
        let product = SplitProduct { a: self.q, b: k };
        self.tiles.multiply_split(&product, scores.slice_cols(keys.clone()));
        let Self { head_dim, scale, alibi, scores, seen, running, acc, .. } = self;
        let (head_dim, scale, alibi) = (*head_dim, *scale, *alibi);
        let softmax = Softmax { head_dim, scale, alibi, keys, scores, seen, running, acc };
        dispatch(self.tier, softmax);
        Some(steps)
    }

    /// Adds the weighted values of some of the queries.
    fn accumulate(&mut self, queries: &Range<usize>, steps: &Range<usize>, v: &[TilePair]) {
        let keys = steps.start * STEP_LEN..steps.end * STEP_LEN;
        let weights = &mut self.weights[..steps.len()];
        for (i, query) in queries.clone().enumerate() {
            let row = &self.scores[query * N_KEYS..][..N_KEYS][keys.clone()];
            pack_row(self.tier, row, i, weights);
        }
        let product =
            Product { a: weights, b: &v[steps.start..], b_stride: KEY_STEPS, add: true, next: v };
        let acc = &mut self.acc[queries.start * self.head_dim..queries.end * self.head_dim];
        self.tiles.multiply(&product, RowsMut::new(acc, queries.len(), self.head_dim));
    }

    /// As [`Self::accumulate`] for all queries, if some values are not finite: a weight of zero would not
    /// hide such a value from queries that do not see it.
    #[cold]
    fn accumulate_apart(&mut self, steps: &Range<usize>, v: &mut [TilePair], floats: &[f32]) {
        let floats = &floats[..N_KEYS * self.head_dim.next_multiple_of(STEP_LEN)];
        for query in 0..self.seen.len() {
            pack_values_of(&self.seen[query], floats, v);
            self.accumulate(&(query..query + 1), steps, v);
        }
        pack_values(self.tier, floats, v);
    }
}

/// The softmax of some queries over a range of keys.
struct Softmax<'a> {
    head_dim: usize,
    scale: ScoreScale,
    alibi: Option<(Alibi<'a>, usize)>, // and the first query
    keys: Range<usize>,                // of the tile that some query sees, rounded to steps
    scores: &'a mut [f32],
    seen: &'a [Range<usize>],
    running: &'a mut [Running],
    acc: &'a mut [f32],
}

impl Kernel for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { head_dim, scale, alibi, keys, scores, seen, running, acc } = self;
        // First all maxima, then all weights, so that the queries' dependency chains overlap.
        let queries = scores.chunks_exact_mut(N_KEYS).zip(acc.chunks_exact_mut(head_dim));
        let queries = running.iter_mut().zip(seen).zip(queries);
        for (query, ((running, seen), (scores, acc))) in queries.enumerate() {
            if seen.is_empty() {
                continue;
            }
            let slope = alibi.map(|(alibi, first)| alibi.of(first + query));
            let Some(factor) = running.meet(l, scores, seen, scale, slope) else { continue };
            let by = l.splat(factor);
            let (vectors, rest) = acc.as_chunks_mut::<8>();
            for acc in vectors {
                l.store(l.mul(l.load(acc), by), acc);
            }
            rest.iter_mut().for_each(|acc| *acc *= factor);
        }
        for ((running, seen), scores) in
            running.iter_mut().zip(seen).zip(scores.chunks_exact_mut(N_KEYS))
        {
            if seen.is_empty() {
                scores[keys.clone()].fill(0.0);
                continue;
            }
            running.weigh(l, scores, seen);
            scores[keys.start..seen.start].fill(0.0);
            scores[seen.end..keys.end].fill(0.0);
        }
    }
}
