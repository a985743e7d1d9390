//! Causal attention of a ragged batch over paged KV memory.
//!
//! The softmax is streamed (arXiv:1805.02867) over tiles of one page each, cut at
//! multiples of `page_len` of the absolute position. What a row and head computes
//! depends on that row, its position and the keys and values it sees: how a prompt
//! is chunked, what else is in the batch and how many threads run never shows.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod scalar;

use std::ops::Range;

use crate::kv::{Part, decode};
use crate::{KvGeometry, PerThread, Rows, RowsMut, Team, Tier};

/// Query rows times heads that share a tile of keys and values. Converting a tile
/// costs about as much as one of them.
const BLOCK_LEN: usize = 32;

/// What a model's attention layer computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttnParams<'a> {
    /// Query heads.
    pub n_heads: usize,
    /// Heads of keys and values; each serves `n_heads / n_kv_heads` query heads.
    pub n_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Factor of the scores, often `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Scores become `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// Position `p` sees only positions above `p - window`.
    pub window: Option<usize>,
    /// Whether position `p` sees only positions up to `p`. If not, it sees up to the
    /// last row of its sequence in the batch.
    pub causal: bool,
    /// A logit of each query head that takes part in the softmax as the score of a key
    /// would, and adds no value. It is neither scaled nor capped (arXiv:2508.10925).
    pub sinks: Option<&'a [f32]>, // [n_heads]
}

/// One sequence of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttnSeq<'a> {
    /// Its rows in the batch, of consecutive positions.
    pub rows: Range<usize>,
    /// The position of the first of these rows.
    pub first_pos: usize,
    /// The pages of its keys and values: `pages[i]` holds `page_len` positions from
    /// `(first_page + i) * page_len`.
    pub pages: &'a [u32],
    /// Pages that were dropped before the first of `pages`.
    pub first_page: usize,
}

/// Memory for [`attention`], made once and used for every call.
#[derive(Debug)]
pub struct AttnScratch {
    threads: PerThread<Block>,
    max_page_len: usize,
    max_head_dim: usize,
    max_group: usize,
}

impl AttnScratch {
    /// Scratch for a team of `n_threads` and for layers of at most these sizes.
    /// `max_group` is the number of query heads that share a KV head.
    pub fn new(
        n_threads: usize,
        max_page_len: usize,
        max_head_dim: usize,
        max_group: usize,
    ) -> Self {
        let n_queries = max_group.max(BLOCK_LEN);
        let (head_len, tile_len) = (padded(max_head_dim), padded(max_page_len));
        let threads = PerThread::new(n_threads, |_| Block {
            q: vec![0.0; n_queries * head_len],
            acc: vec![0.0; n_queries * head_len],
            max: vec![0.0; n_queries],
            sum: vec![0.0; n_queries],
            seen: vec![0..0; n_queries],
            scores: vec![0.0; n_queries * tile_len],
            k: vec![0.0; tile_len * head_len],
            v: vec![0.0; tile_len * head_len],
        });
        Self { threads, max_page_len, max_head_dim, max_group }
    }
}

/// A block of queries of one sequence and KV head, and the tile it meets.
#[derive(Debug)]
struct Block {
    q: Vec<f32>,             // [n_queries, head_len], scaled
    acc: Vec<f32>,           // [n_queries, head_len], weighted sums of values
    max: Vec<f32>,           // [n_queries], largest score so far
    sum: Vec<f32>,           // [n_queries], sum of weights, relative to the largest
    seen: Vec<Range<usize>>, // [n_queries], keys of the tile that a query sees
    scores: Vec<f32>,        // [n_queries, tile_len], then the weights
    k: Vec<f32>,             // [tile_len, head_len]
    v: Vec<f32>,             // [tile_len, head_len]
}

/// The part of a block that the kernel of a tier works on. Heads are padded with
/// zeros to `head_len` elements and tiles to `tile_len` keys, both multiples of 8.
struct Tile<'a> {
    head_len: usize,
    tile_len: usize,
    softcap: Option<f32>,
    q: &'a [f32],             // [n_queries, head_len]
    acc: &'a mut [f32],       // [n_queries, head_len]
    max: &'a mut [f32],       // [n_queries]
    sum: &'a mut [f32],       // [n_queries]
    seen: &'a [Range<usize>], // [n_queries], none empty
    scores: &'a mut [f32],    // [n_queries, tile_len]
    k: &'a [f32],             // [tile_len, head_len]
    v: &'a [f32],             // [tile_len, head_len]
}

/// The next multiple of the vector width.
const fn padded(n: usize) -> usize {
    n.next_multiple_of(8)
}

/// `out = softmax(scale * q kᵀ) v` for every row and head, each row over what it
/// sees of its own sequence and, where there is one, its head's sink. Keys and values of the batch's own rows have to be in
/// the memory already. Rows of no sequence are left as they are.
///
/// # Panics
/// If the shapes disagree, sequences share rows, a page is missing or outside the
/// memory, or the scratch is too small.
#[expect(clippy::too_many_arguments, reason = "each is one part of the operation")]
#[expect(clippy::needless_pass_by_value, reason = "the view is exclusive while the call lasts")]
pub fn attention(
    team: &Team,
    tier: Tier,
    params: &AttnParams<'_>,
    geo: &KvGeometry,
    memory: &[u8],        // [n_pages * page_bytes]
    q: Rows<'_>,          // [n_rows, n_heads * head_dim]
    seqs: &[AttnSeq<'_>], // in order of their rows
    scratch: &AttnScratch,
    out: RowsMut<'_>, // [n_rows, n_heads * head_dim]
) {
    assert_fits(team, params, geo, memory, &q, seqs, scratch, &out);
    let group = params.n_heads / params.n_kv_heads;
    let block_rows = (BLOCK_LEN / group).max(1);
    let n_blocks = |seq: &AttnSeq<'_>| seq.rows.len().div_ceil(block_rows);
    let n_tasks = seqs.iter().map(n_blocks).sum::<usize>() * params.n_kv_heads;
    team.parallel_for(n_tasks, &|task, thread| {
        let (kv_head, mut block) = (task % params.n_kv_heads, task / params.n_kv_heads);
        for seq in seqs {
            if block >= n_blocks(seq) {
                block -= n_blocks(seq);
                continue;
            }
            // The last rows see the most, so their blocks start first.
            let first = seq.rows.start + (n_blocks(seq) - 1 - block) * block_rows;
            let rows = first..seq.rows.end.min(first + block_rows);
            let heads = kv_head * group..(kv_head + 1) * group;
            let cols = heads.start * params.head_dim..heads.end * params.head_dim;
            // SAFETY: sequences share no rows, blocks of one sequence share none, and
            // KV heads share no columns, so every task has a tile of its own. `out` is
            // not used otherwise during the loop.
            let tile = unsafe { out.tile(rows.clone(), cols.clone()) };
            let q = q.slice_rows(rows.clone()).slice_cols(cols);
            let task = Task { tier, params, geo, memory, seq, kv_head, rows };
            task.run(&mut scratch.threads.get(thread), q, tile);
            return;
        }
    });
}

#[expect(clippy::too_many_arguments, reason = "the arguments of the kernel")]
fn assert_fits(
    team: &Team,
    params: &AttnParams<'_>,
    geo: &KvGeometry,
    memory: &[u8],
    q: &Rows<'_>,
    seqs: &[AttnSeq<'_>],
    scratch: &AttnScratch,
    out: &RowsMut<'_>,
) {
    let shape = (q.n_rows(), params.n_heads * params.head_dim);
    assert_eq!((q.n_rows(), q.n_cols()), shape, "shape of the queries");
    assert_eq!((out.n_rows(), out.n_cols()), shape, "shape of the result");
    let heads = (params.n_kv_heads, params.head_dim);
    assert_eq!((geo.n_kv_heads(), geo.head_dim()), heads, "heads of the KV memory");
    assert!(params.n_heads.is_multiple_of(params.n_kv_heads), "query heads of a KV head");
    assert!(params.window != Some(0), "a window of no positions");
    assert!(params.softcap.is_none_or(|cap| cap > 0.0), "a soft cap above zero");
    assert!(params.sinks.is_none_or(|s| s.len() == params.n_heads), "a sink for each head");
    assert!(
        scratch.threads.len() >= team.n_threads()
            && scratch.max_page_len >= geo.page_len()
            && scratch.max_head_dim >= params.head_dim
            && scratch.max_group >= params.n_heads / params.n_kv_heads,
        "the scratch is too small"
    );
    let n_pages = memory.len() / geo.page_bytes();
    let mut n_rows = 0;
    for seq in seqs {
        assert!(n_rows <= seq.rows.start && seq.rows.start <= seq.rows.end, "rows {:?}", seq.rows);
        n_rows = seq.rows.end;
        assert!(seq.pages.iter().all(|&page| (page as usize) < n_pages), "pages of the memory");
        if seq.rows.is_empty() {
            continue;
        }
        let first = seen(params, seq, seq.rows.start).start / geo.page_len();
        let end = (seq.first_pos + seq.rows.len()).div_ceil(geo.page_len());
        let held = seq.first_page..seq.first_page + seq.pages.len();
        assert!(held.start <= first && end <= held.end, "pages {held:?} of {first}..{end}");
    }
    assert!(n_rows <= q.n_rows(), "{n_rows} rows of {}", q.n_rows());
}

/// The positions that a row of a sequence sees.
fn seen(params: &AttnParams<'_>, seq: &AttnSeq<'_>, row: usize) -> Range<usize> {
    let pos = seq.first_pos + (row - seq.rows.start);
    let start = params.window.map_or(0, |window| (pos + 1).saturating_sub(window));
    let end = if params.causal { pos + 1 } else { seq.first_pos + seq.rows.len() };
    start..end
}

/// The rows of one sequence that one thread computes for one KV head.
struct Task<'a> {
    tier: Tier,
    params: &'a AttnParams<'a>,
    geo: &'a KvGeometry,
    memory: &'a [u8],
    seq: &'a AttnSeq<'a>,
    kv_head: usize,
    rows: Range<usize>,
}

impl Task<'_> {
    fn run(
        &self,
        block: &mut Block,
        q: Rows<'_>,          // [n_rows, group * head_dim]
        mut out: RowsMut<'_>, // [n_rows, group * head_dim]
    ) {
        let (params, page_len) = (self.params, self.geo.page_len());
        let (head_dim, head_len) = (params.head_dim, padded(params.head_dim));
        let group = params.n_heads / params.n_kv_heads;
        let n_queries = self.rows.len() * group;

        // Queries in order of row, then head, so positions never fall.
        for (i, q) in q.iter().flat_map(|row| row.chunks_exact(head_dim)).enumerate() {
            let scaled = &mut block.q[i * head_len..][..head_len];
            scaled[head_dim..].fill(0.0);
            scaled.iter_mut().zip(q).for_each(|(scaled, q)| *scaled = q * params.scale);
        }
        block.acc[..n_queries * head_len].fill(0.0);
        match params.sinks {
            // A sink is a key before all others whose value is zero.
            Some(sinks) => {
                let sinks = &sinks[self.kv_head * group..][..group];
                block.max[..n_queries]
                    .chunks_exact_mut(group)
                    .for_each(|m| m.copy_from_slice(sinks));
                block.sum[..n_queries].fill(1.0);
            }
            None => {
                block.max[..n_queries].fill(f32::NEG_INFINITY);
                block.sum[..n_queries].fill(0.0);
            }
        }

        // Both ends of what a row sees rise with its position.
        let start = seen(params, self.seq, self.rows.start).start;
        let end = seen(params, self.seq, self.rows.end - 1).end;
        for tile_idx in start / page_len..end.div_ceil(page_len) {
            self.run_tile(block, tile_idx, n_queries, group);
        }

        for i in 0..self.rows.len() {
            for (j, out) in out.row_mut(i).chunks_exact_mut(head_dim).enumerate() {
                let query = i * group + j;
                let scale = 1.0 / block.sum[query];
                let acc = &block.acc[query * head_len..][..head_dim];
                out.iter_mut().zip(acc).for_each(|(out, acc)| *out = acc * scale);
            }
        }
    }

    /// Adds the keys and values of one page to the queries that see some of them.
    fn run_tile(&self, block: &mut Block, tile_idx: usize, n_queries: usize, group: usize) {
        let page_len = self.geo.page_len();
        let (head_len, tile_len) = (padded(self.params.head_dim), padded(page_len));
        let first_pos = tile_idx * page_len;
        // The queries that see the tile are consecutive.
        let (mut queries, mut keys) = (n_queries..0, page_len..0);
        for query in 0..n_queries {
            let seen = seen(self.params, self.seq, self.rows.start + query / group);
            let start = seen.start.saturating_sub(first_pos);
            let end = seen.end.saturating_sub(first_pos).min(page_len);
            block.seen[query] = start..end;
            if start < end {
                queries = queries.start.min(query)..query + 1;
                keys = keys.start.min(start)..keys.end.max(end);
            }
        }
        if queries.is_empty() {
            return;
        }
        self.load(Part::K, tile_idx, &keys, &mut block.k);
        self.load(Part::V, tile_idx, &keys, &mut block.v);
        let heads = queries.start * head_len..queries.end * head_len;
        let mut tile = Tile {
            head_len,
            tile_len,
            softcap: self.params.softcap,
            q: &block.q[heads.clone()],
            acc: &mut block.acc[heads],
            max: &mut block.max[queries.clone()],
            sum: &mut block.sum[queries.clone()],
            seen: &block.seen[queries.clone()],
            scores: &mut block.scores[..queries.len() * tile_len],
            k: &block.k[..tile_len * head_len],
            v: &block.v[..tile_len * head_len],
        };
        match self.tier.avx2() {
            None => scalar::run(&mut tile),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the token proves that AVX2, FMA and F16C were detected.
            Some(_) => unsafe { avx2::run(&mut tile) },
        }
    }

    /// Converts the keys or values of a page at `range`. What is outside keeps its
    /// old finite or infinite values, which no query uses.
    fn load(&self, part: Part, tile_idx: usize, range: &Range<usize>, out: &mut [f32]) {
        let (head_dim, head_len) = (self.params.head_dim, padded(self.params.head_dim));
        let page = self.seq.pages[tile_idx - self.seq.first_page] as usize;
        let n_bytes = head_dim * self.geo.element().n_bytes();
        for idx in range.clone() {
            let start = self.geo.start(part, page, self.kv_head, idx);
            let out = &mut out[idx * head_len..][..head_len];
            decode(
                self.tier,
                self.geo.element(),
                &self.memory[start..][..n_bytes],
                &mut out[..head_dim],
            );
            out[head_dim..].fill(0.0);
        }
    }
}

#[cfg(test)]
mod tests;
