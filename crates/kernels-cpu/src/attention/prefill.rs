//! Attention of prefill rows in F32: blocks of queries against tiles of keys and values.
//!
//! A tile is widened once for all queries of a block, to panels of 16 columns, and both products
//! accumulate in blocks of registers. Tiles are cut at absolute multiples of [`TILE_LEN`]. A query's
//! scores, weights and sums are computed in order of its keys, whatever else is in its block.

use std::ops::Range;

use super::element::{Element, with_element};
use super::softmax::{Alibi, Running, ScoreScale};
use super::{AttnParams, AttnSeq, kv_row, seen};
use crate::lanes::{Kernel, Lanes, dispatch, load_from, store_to};
use crate::{KvGeometry, Rows, RowsMut, Tier};

/// Keys per tile.
const TILE_LEN: usize = 128;

/// Columns per panel: keys of a score panel, elements of a value panel.
const PANEL: usize = 16;

/// Queries that are multiplied at a time, with one panel in AVX2 (12 of 16 registers hold sums) or four
/// panels in AVX-512 (24 of 32).
const QUERIES: usize = 6;

/// Maximum number of queries of a block: rows of a sequence times the heads that share a KV head.
const BLOCK_LEN: usize = 96;

/// Rows of a sequence per block.
pub(super) fn block_rows(group: usize) -> usize {
    (BLOCK_LEN / group).max(1)
}

/// Elements of a head, rounded up to whole panels.
const fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(PANEL)
}

/// One thread's memory for a block and a tile.
#[derive(Debug)]
pub(super) struct Block {
    q: Vec<f32>,             // [n_queries, head_dim], scaled
    acc: Vec<f32>,           // [n_queries, padded], weighted sums of values
    running: Vec<Running>,   // [n_queries]
    seen: Vec<Range<usize>>, // [n_queries], keys of the tile that a query sees
    extents: Vec<Extent>,    // [n_queries / QUERIES]
    scores: Vec<f32>,        // [n_queries, TILE_LEN], then the weights
    k: Vec<f32>,             // [TILE_LEN / PANEL, head_dim, PANEL]
    v: Vec<f32>,             // [padded / PANEL, TILE_LEN, PANEL]
}

impl Block {
    /// Allocates for heads and groups of up to these sizes.
    pub(super) fn new(max_head_dim: usize, max_group: usize) -> Self {
        let n_queries = max_group.max(BLOCK_LEN).next_multiple_of(QUERIES);
        let head_len = padded(max_head_dim);
        Self {
            q: vec![0.0; n_queries * max_head_dim],
            acc: vec![0.0; n_queries * head_len],
            running: vec![Running::new(None); n_queries],
            seen: vec![0..0; n_queries],
            extents: vec![Extent::default(); n_queries / QUERIES],
            scores: vec![0.0; n_queries * TILE_LEN],
            k: vec![0.0; TILE_LEN * head_len],
            v: vec![0.0; TILE_LEN * head_len],
        }
    }
}

/// A task: some rows of one sequence, for one KV head.
pub(super) struct Task<'a> {
    pub(super) tier: Tier,
    pub(super) params: &'a AttnParams<'a>,
    pub(super) geo: &'a KvGeometry,
    pub(super) memory: &'a [u8],
    pub(super) seq: &'a AttnSeq<'a>,
    pub(super) kv_head: usize,
    pub(super) rows: Range<usize>,
}

impl Task<'_> {
    pub(super) fn run(
        &self,
        block: &mut Block,
        q: Rows<'_>,          // [n_rows, group * head_dim]
        mut out: RowsMut<'_>, // [n_rows, group * head_dim]
    ) {
        let head_dim = self.params.head_dim;
        let head_len = padded(head_dim);
        let group = self.params.n_heads / self.params.n_kv_heads;
        let scale = ScoreScale::new(self.params.scale, self.params.softcap);
        let n_real = self.rows.len() * group;
        // Padding queries see the positions of the last row.
        let n_queries = n_real.next_multiple_of(QUERIES);

        // Queries are ordered by row, then head, so their positions ascend.
        for (i, q) in q.iter().flat_map(|row| row.chunks_exact(head_dim)).enumerate() {
            let out = &mut block.q[i * head_dim..][..head_dim];
            dispatch(self.tier, Scale { x: q, factor: scale.q, out });
        }
        block.q[n_real * head_dim..n_queries * head_dim].fill(0.0);
        block.acc[..n_queries * head_len].fill(0.0);
        for (i, running) in block.running[..n_queries].iter_mut().enumerate() {
            let head = self.kv_head * group + i % group;
            *running = Running::new(self.params.sinks.map(|sinks| sinks[head]));
        }

        // Both ends of the range that a row sees ascend with its position.
        let start = seen(self.params, self.seq, self.rows.start).start;
        let end = seen(self.params, self.seq, self.rows.end - 1).end;
        for tile_idx in start / TILE_LEN..end.div_ceil(TILE_LEN) {
            let first_pos = tile_idx * TILE_LEN;
            let in_tile = |pos: usize| pos.saturating_sub(first_pos).min(TILE_LEN);
            for (i, range) in block.seen[..n_queries].iter_mut().enumerate() {
                let row = self.rows.start + i.min(n_real - 1) / group;
                let seen = seen(self.params, self.seq, row);
                *range = in_tile(seen.start)..in_tile(seen.end);
            }
            for (extent, seen) in
                block.extents.iter_mut().zip(block.seen[..n_queries].chunks_exact(QUERIES))
            {
                *extent = Extent::new(seen);
            }
            let keys = in_tile(start)..in_tile(end);
            self.load(block, first_pos, keys);
            let slopes = self.params.alibi.map(|slopes| &slopes[self.kv_head * group..][..group]);
            let first_query = self.seq.first_pos + (self.rows.start - self.seq.rows.start);
            let alibi = slopes.map(|slopes| Alibi::new(slopes, first_pos, first_query));
            let tile = Tile { head_dim, scale, alibi, n_queries, block };
            dispatch(self.tier, tile);
        }

        for i in 0..self.rows.len() {
            for (j, out) in out.row_mut(i).chunks_exact_mut(head_dim).enumerate() {
                let query = i * group + j;
                let inv = 1.0 / block.running[query].sum;
                let x = &block.acc[query * head_len..][..head_dim];
                dispatch(self.tier, Scale { x, factor: inv, out });
            }
        }
    }

    /// Widens the keys and values of a tile that some query sees. Other places keep old values, which no
    /// query uses.
    fn load(&self, block: &mut Block, first_pos: usize, keys: Range<usize>) {
        let Block { k, v, .. } = block;
        let mut starts = [0; TILE_LEN];
        for (start, key) in starts.iter_mut().zip(0..TILE_LEN) {
            // Keys outside the range repeat the nearest one inside.
            let pos = first_pos + key.clamp(keys.start, keys.end - 1);
            *start = kv_row(self.geo, self.seq, self.kv_head, pos);
        }
        let bytes = self.geo.head_bytes();
        let v_offset = self.geo.v_offset_from_k();
        for start in starts {
            let v_start = start.wrapping_add_signed(v_offset);
            assert!(start.max(v_start) + bytes <= self.memory.len(), "a head in the memory");
        }
        let (memory, head_dim) = (self.memory, self.params.head_dim);
        with_element!(self.geo.ty(), E => {
            let load =
                Load::<E> { memory, starts, v_offset, keys, head_dim, k, v, ty: std::marker::PhantomData };
            dispatch(self.tier, load);
        });
    }
}

/// `out = x * factor`.
struct Scale<'a> {
    x: &'a [f32],
    factor: f32,
    out: &'a mut [f32],
}

impl Kernel for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let factor = l.splat16(self.factor);
        for at in (0..self.out.len()).step_by(16) {
            store_to(l, l.mul16(load_from(l, self.x, at), factor), self.out, at);
        }
    }
}

/// Widens a tile's keys and values to panels.
struct Load<'a, E> {
    memory: &'a [u8],
    starts: [usize; TILE_LEN], // where the keys begin in the memory
    v_offset: isize,           // from a key to its value
    keys: Range<usize>,
    head_dim: usize,
    k: &'a mut [f32], // [TILE_LEN / PANEL, head_dim, PANEL]
    v: &'a mut [f32], // [padded / PANEL, TILE_LEN, PANEL]
    ty: std::marker::PhantomData<E>,
}

/// Loads vector `i` of a stored head, filled up with zeros.
///
/// # Safety
/// `head` is the start of a stored head of `head_dim` elements, and `8 * i` is below
/// `head_dim`.
#[inline(always)]
pub(super) unsafe fn load_any<L: Lanes, E: Element>(
    l: L,
    head: *const u8,
    i: usize,
    head_dim: usize,
) -> L::V {
    let n = head_dim - 8 * i;
    // SAFETY: the caller's promise.
    if n >= 8 { unsafe { E::load(l, head, i) } } else { unsafe { E::load_tail(l, head, i, n) } }
}

impl<E: Element> Kernel for Load<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let head_dim = self.head_dim;
        let n_vectors = head_dim.div_ceil(8);
        let head = |key: usize, offset: isize| -> *const u8 {
            self.memory.as_ptr().wrapping_add(self.starts[key]).wrapping_offset(offset)
        };
        for eight in self.keys.start / 8..self.keys.end.div_ceil(8) {
            let (panel, half) = (eight / 2, eight % 2 * 8);
            let panel = &mut self.k[panel * head_dim * PANEL..][..head_dim * PANEL];
            for i in 0..n_vectors {
                let mut rows = [l.splat(0.0); 8];
                for (j, row) in rows.iter_mut().enumerate() {
                    // SAFETY: the task checked that every head is in the memory.
                    *row = unsafe { load_any::<L, E>(l, head(8 * eight + j, 0), i, head_dim) };
                }
                let columns = l.transpose(rows);
                let n = (head_dim - 8 * i).min(8);
                let lines = panel[8 * i * PANEL..][..n * PANEL].as_chunks_mut::<PANEL>().0;
                for (column, line) in columns.into_iter().zip(lines) {
                    l.store(column, &mut line.as_chunks_mut::<8>().0[half / 8]);
                }
            }
        }
        let (v, _) = self.v.as_chunks_mut::<8>();
        for key in self.keys.clone() {
            let value = head(key, self.v_offset);
            for i in 0..n_vectors {
                // SAFETY: the task checked that every head is in the memory.
                let x = unsafe { load_any::<L, E>(l, value, i, head_dim) };
                l.store(x, &mut v[(i / 2 * TILE_LEN + key) * 2 + i % 2]);
            }
        }
    }
}

/// The keys of a tile that a few queries see.
#[derive(Clone, Debug, Default)]
struct Extent {
    /// The smallest range with all keys that at least one of them sees.
    some: Range<usize>,
    /// The keys that all of them see, within `some`.
    all: Range<usize>,
}

impl Extent {
    fn new(seen: &[Range<usize>]) -> Self {
        let seeing = || seen.iter().filter(|seen| !seen.is_empty());
        let some = seeing().map(|s| s.start).min()..seeing().map(|s| s.end).max();
        let (Some(start), Some(end)) = (some.start, some.end) else { return Self::default() };
        let all_start = seen.iter().map(|s| s.start).max().unwrap_or(0);
        let all_end = seen.iter().map(|s| s.end).min().unwrap_or(0);
        let all = if all_start < all_end { all_start..all_end } else { end..end };
        Self { some: start..end, all }
    }
}

/// The products of a block of queries with a tile.
struct Tile<'a> {
    head_dim: usize,
    scale: ScoreScale,
    alibi: Option<Alibi<'a>>,
    n_queries: usize,
    block: &'a mut Block,
}

/// Sums for `P` panels and [`QUERIES`] queries.
type Registers<L, const P: usize> = [[<L as Lanes>::W; P]; QUERIES];

/// Computes `acc[r] + Σ a[r][i] * panel[i]` in order of `i`, for `P` panels of one length.
///
/// # Safety
/// From `a` on, `QUERIES` rows of `panel.len()` elements, `stride` apart, can be read.
#[inline(always)]
unsafe fn multiply<L: Lanes, const P: usize>(
    l: L,
    mut acc: Registers<L, P>,
    a: *const f32,
    stride: usize,
    panels: [&[[f32; PANEL]]; P],
) -> Registers<L, P> {
    let n = panels[0].len();
    let mut panels = panels;
    for panel in &mut panels {
        *panel = &panel[..n];
    }
    for i in 0..n {
        let mut columns = [l.splat16(0.0); P];
        for (columns, panel) in columns.iter_mut().zip(panels) {
            *columns = l.load16(&panel[i]);
        }
        for (r, acc) in acc.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let x = l.splat16(unsafe { *a.add(r * stride + i) });
            for (acc, columns) in acc.iter_mut().zip(columns) {
                *acc = l.fma16(x, columns, *acc);
            }
        }
    }
    acc
}

impl Kernel for Tile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        self.score(l);
        self.weigh(l);
        self.accumulate(l);
    }
}

impl Tile<'_> {
    /// Computes the scores of the keys that the queries see, and of some around them.
    #[inline(always)]
    fn score<L: Lanes>(&mut self, l: L) {
        const N_PANELS: usize = TILE_LEN / PANEL;
        for p in (0..N_PANELS).step_by(if L::IS_WIDE { 4 } else { 1 }) {
            for first in (0..self.n_queries).step_by(QUERIES) {
                let some = &self.block.extents[first / QUERIES].some;
                let seen = |panels: Range<usize>| {
                    some.start < panels.end * PANEL && panels.start * PANEL < some.end
                };
                if !L::IS_WIDE {
                    if seen(p..p + 1) {
                        self.score_panels::<L, 1>(l, first, p);
                    }
                    continue;
                }
                match [seen(p..p + 2), seen(p + 2..p + 4)] {
                    [true, true] => self.score_panels::<L, 4>(l, first, p),
                    [true, false] => self.score_panels::<L, 2>(l, first, p),
                    [false, true] => self.score_panels::<L, 2>(l, first, p + 2),
                    [false, false] => {}
                }
            }
        }
    }

    /// [`Self::score`] for the queries from `first` on and `P` panels of keys from panel `p` on.
    #[inline(always)]
    fn score_panels<L: Lanes, const P: usize>(&mut self, l: L, first: usize, p: usize) {
        let Block { q, scores, k, .. } = &mut *self.block;
        let head_dim = self.head_dim;
        let panels: [_; P] = std::array::from_fn(|i| {
            let panel = &k[(p + i) * head_dim * PANEL..][..head_dim * PANEL];
            panel.as_chunks::<PANEL>().0
        });
        let q = &q[first * head_dim..][..QUERIES * head_dim];
        let zero = [[l.splat16(0.0); P]; QUERIES];
        // SAFETY: the slice holds the rows.
        let acc = unsafe { multiply(l, zero, q.as_ptr(), head_dim, panels) };
        let scores = &mut scores[first * TILE_LEN..][..QUERIES * TILE_LEN];
        for (acc, scores) in acc.iter().zip(scores.chunks_exact_mut(TILE_LEN)) {
            let scores = &mut scores.as_chunks_mut::<PANEL>().0[p..p + P];
            for (acc, scores) in acc.iter().zip(scores) {
                l.store16(*acc, scores);
            }
        }
    }

    /// Turns scores into weights, and rescales the sums if the maximum grew.
    #[inline(always)]
    fn weigh<L: Lanes>(&mut self, l: L) {
        let head_len = padded(self.head_dim);
        let Block { acc, running, scores, seen, .. } = &mut *self.block;
        let queries = running[..self.n_queries]
            .iter_mut()
            .zip(&seen[..])
            .zip(scores.chunks_exact_mut(TILE_LEN))
            .zip(acc.chunks_exact_mut(head_len));
        for (query, (((running, seen), scores), acc)) in queries.enumerate() {
            if seen.is_empty() {
                continue;
            }
            let slope = self.alibi.map(|alibi| alibi.of(query));
            if let Some(factor) = running.add(l, scores, seen, self.scale, slope) {
                let factor = l.splat16(factor);
                for acc in acc.as_chunks_mut::<PANEL>().0 {
                    l.store16(l.mul16(l.load16(acc), factor), acc);
                }
            }
        }
    }

    /// Adds the weighted values.
    #[inline(always)]
    fn accumulate<L: Lanes>(&mut self, l: L) {
        let n_panels = padded(self.head_dim) / PANEL;
        let mut p = 0;
        while L::IS_WIDE && p + 4 <= n_panels {
            self.accumulate_panels::<L, 4>(l, p);
            p += 4;
        }
        while L::IS_WIDE && p + 2 <= n_panels {
            self.accumulate_panels::<L, 2>(l, p);
            p += 2;
        }
        while p < n_panels {
            self.accumulate_panels::<L, 1>(l, p);
            p += 1;
        }
    }

    /// [`Self::accumulate`] for `P` panels of values from panel `p` on.
    #[inline(always)]
    fn accumulate_panels<L: Lanes, const P: usize>(&mut self, l: L, p: usize) {
        let head_len = padded(self.head_dim);
        let Block { acc, scores, seen, extents, v, .. } = &mut *self.block;
        let panels: [_; P] = std::array::from_fn(|i| {
            v[(p + i) * TILE_LEN * PANEL..][..TILE_LEN * PANEL].as_chunks::<PANEL>().0
        });
        for first in (0..self.n_queries).step_by(QUERIES) {
            let seen = &seen[first..first + QUERIES];
            let Extent { some, all } = &extents[first / QUERIES];
            if some.is_empty() {
                continue;
            }
            let acc = &mut acc[first * head_len..][..QUERIES * head_len];
            let weights = &scores[first * TILE_LEN..][..QUERIES * TILE_LEN];
            let mut edge = Edge { acc, weights, seen, panels, first_panel: p };
            edge.add(l, some.start..all.start);
            let mut sums = [[l.splat16(0.0); P]; QUERIES];
            for (sums, acc) in sums.iter_mut().zip(edge.acc.chunks_exact(head_len)) {
                let acc = &acc.as_chunks::<PANEL>().0[p..p + P];
                for (sum, acc) in sums.iter_mut().zip(acc) {
                    *sum = l.load16(acc);
                }
            }
            let row = weights[all.start..].as_ptr();
            let panels = panels.map(|panel| &panel[all.clone()]);
            // SAFETY: the weights hold the rows, from the first key that all see.
            let sums = unsafe { multiply(l, sums, row, TILE_LEN, panels) };
            for (sums, acc) in sums.iter().zip(edge.acc.chunks_exact_mut(head_len)) {
                let acc = &mut acc.as_chunks_mut::<PANEL>().0[p..p + P];
                for (sum, acc) in sums.iter().zip(acc) {
                    l.store16(*sum, acc);
                }
            }
            edge.add(l, all.end..some.end);
        }
    }
}

/// Weighted values of keys that some, but not all, of a few queries see.
struct Edge<'a, const P: usize> {
    acc: &'a mut [f32],              // [QUERIES, padded]
    weights: &'a [f32],              // [QUERIES, TILE_LEN]
    seen: &'a [Range<usize>],        // [QUERIES]
    panels: [&'a [[f32; PANEL]]; P], // [TILE_LEN] each
    first_panel: usize,
}

impl<const P: usize> Edge<'_, P> {
    /// As [`multiply`], but each key only for the queries that see it.
    #[inline(always)]
    fn add<L: Lanes>(&mut self, l: L, keys: Range<usize>) {
        let head_len = self.acc.len() / QUERIES;
        for (r, acc) in self.acc.chunks_exact_mut(head_len).enumerate() {
            let acc = &mut acc.as_chunks_mut::<PANEL>().0[self.first_panel..][..P];
            let seen = &self.seen[r];
            let mut sums = [l.splat16(0.0); P];
            for (sum, acc) in sums.iter_mut().zip(&*acc) {
                *sum = l.load16(acc);
            }
            for key in keys.start.max(seen.start)..keys.end.min(seen.end) {
                let x = l.splat16(self.weights[r * TILE_LEN + key]);
                for (sum, panel) in sums.iter_mut().zip(self.panels) {
                    *sum = l.fma16(x, l.load16(&panel[key]), *sum);
                }
            }
            for (sum, acc) in sums.iter().zip(acc) {
                l.store16(*sum, acc);
            }
        }
    }
}
