//! Causal attention of a ragged batch over paged KV memory.
//!
//! The softmax is streamed (arXiv:1805.02867). Prefill rows are computed in blocks against tiles of
//! keys, in F32 (`prefill.rs`) or on BF16 matrix tiles (`tiles.rs`). Decode rows are computed one by one
//! against splits of their context (`decode.rs`). Tiles and splits are cut at multiples of constants of
//! the absolute position. The result of a row and head depends on the row, its kind (prefill or
//! decode), its position, and the keys and values that it sees. It depends neither on the chunking of
//! the prompt, nor on the rest of the batch, nor on the number of threads.

mod decode;
mod element;
mod pack;
mod prefill;
mod softmax;
mod split;
mod tiles;

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use realizar_quant::BlockType;

use crate::kv::Part;
use crate::tiles::Tiles;
use crate::{KvGeometry, PackedArithmetic, PerThread, Rows, RowsMut, Team, Tier};

/// Parameters of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttnParams<'a> {
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key-value heads; each serves `n_heads / n_kv_heads` query heads.
    pub n_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Factor of the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Soft cap of the scores: `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// Sliding window: position `p` sees only positions above `p - window`.
    pub window: Option<usize>,
    /// Whether the window does not slide: positions are cut into chunks of `window`, and a position sees
    /// those of its chunk up to itself.
    pub chunked: bool,
    /// Attention sinks: a logit per query head that counts in the softmax as the score of a key without a
    /// value. Sinks are neither scaled nor capped (arXiv:2508.10925).
    pub sinks: Option<&'a [f32]>, // [n_heads]
    /// Slopes of ALiBi (arXiv:2108.12409): after scale and cap, a score is reduced by the slope times the
    /// distance between query and key.
    pub alibi: Option<&'a [f32]>, // [n_heads]
}

/// One sequence of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttnSeq<'a> {
    /// The sequence's rows in the batch, of consecutive positions.
    pub rows: Range<usize>,
    /// Position of the first row.
    pub first_pos: usize,
    /// Pages of keys and values: `pages[i]` holds the `page_len` positions from
    /// `(first_page + i) * page_len` on.
    pub pages: &'a [u32],
    /// Number of pages that were released before the first of `pages`.
    pub first_page: usize,
    /// The end of the positions that each row sees, ascending, if some rows see later rows. `None`: each
    /// row sees up to its own position. Always `None` for decode rows.
    pub reaches: Option<&'a [u32]>, // [rows.len()]
    /// Whether the rows are decode rows. Decode rows sum in another order than prefill rows, so their bits
    /// differ.
    pub generated: bool,
}

/// Maximum sizes for an [`AttnScratch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttnLimits {
    /// Elements of a head.
    pub head_dim: usize,
    /// Query heads per KV head.
    pub group: usize,
    /// Number of key-value heads.
    pub n_kv_heads: usize,
    /// Number of positions that a row sees.
    pub kv_len: usize,
}

/// Scratch memory of [`attention`], reused by all calls.
#[derive(Debug)]
pub struct AttnScratch {
    blocks: PerThread<prefill::Block>,
    tiles: Option<PerThread<tiles::Block>>,
    splits: PerThread<decode::Split>,
    shared: Mutex<decode::Shared>,
    limits: AttnLimits,
}

impl AttnScratch {
    /// Allocates for a team of `n_threads` and layers of at most these sizes.
    pub fn new(n_threads: usize, limits: AttnLimits) -> Self {
        let AttnLimits { head_dim, group, n_kv_heads, kv_len } = limits;
        Self {
            blocks: PerThread::new(n_threads, |_| prefill::Block::new(head_dim, group)),
            tiles: None,
            splits: PerThread::new(n_threads, |_| decode::Split::new(head_dim, group)),
            shared: Mutex::new(decode::Shared::new(head_dim, group, n_kv_heads, kv_len)),
            limits,
        }
    }

    /// Adds the memory for prefill rows on tiles, if the tier computes them in
    /// [`PackedArithmetic::Bf16`].
    pub fn for_tier(mut self, tier: Tier) -> Self {
        if tier.prompt_arithmetic() == PackedArithmetic::Bf16 {
            let AttnLimits { head_dim, group, .. } = self.limits;
            let n_threads = self.blocks.len();
            self.tiles = Some(PerThread::new(n_threads, |_| tiles::Block::new(head_dim, group)));
        }
        self
    }
}

/// Computes `out = softmax(scale * q kᵀ) v` for every row and head, over the positions that the row sees
/// in its sequence, and the head's sink if there is one. The keys and values of the batch's own rows
/// must be stored already. Rows of no sequence are left unchanged.
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
    if seqs.iter().any(|seq| seq.generated && !seq.rows.is_empty()) {
        // Waits only if another call uses the same scratch.
        let mut shared = scratch.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let splits = &scratch.splits;
        let decode = decode::Decode { team, tier, params, geo, memory, q, seqs, splits };
        decode.run(&mut shared, &out);
    }
    let prompts = Prompts { team, tier, params, geo, memory, q, seqs };
    match tier {
        // F32 keys and values are not rounded to BF16.
        _ if geo.ty() == BlockType::F32 => prompts.run(scratch, &out),
        #[cfg(target_arch = "x86_64")]
        Tier::AmxBf16(tiles) => prompts.run_on_tiles(tiles, scratch, &out),
        Tier::AmxBf16Software(tiles) => prompts.run_on_tiles(tiles, scratch, &out),
        _ => prompts.run(scratch, &out),
    }
}

/// The prefill rows of a batch.
struct Prompts<'a> {
    team: &'a Team,
    tier: Tier,
    params: &'a AttnParams<'a>,
    geo: &'a KvGeometry,
    memory: &'a [u8],
    q: Rows<'a>,
    seqs: &'a [AttnSeq<'a>],
}

impl Prompts<'_> {
    /// Runs in F32.
    fn run(&self, scratch: &AttnScratch, out: &RowsMut<'_>) {
        let block_rows = prefill::block_rows(self.params.n_heads / self.params.n_kv_heads);
        self.for_each_block(block_rows, out, &|task, q, tile, thread| {
            task.run(&mut scratch.blocks.get(thread), q, tile);
        });
    }

    /// Runs on BF16 tiles.
    fn run_on_tiles(&self, tiles: impl Tiles, scratch: &AttnScratch, out: &RowsMut<'_>) {
        let blocks = scratch.tiles.as_ref().expect("the scratch is for the tier");
        let group = self.params.n_heads / self.params.n_kv_heads;
        let prompts = self.seqs.iter().filter(|seq| !seq.generated);
        let n_queries = prompts.map(|seq| seq.rows.len()).sum::<usize>() * group;
        // Four tasks per thread, over all KV heads.
        let n_tasks = (4 * self.team.n_threads()).div_ceil(self.params.n_kv_heads);
        let block_rows = tiles::block_rows(group, n_queries, n_tasks);
        self.for_each_block(block_rows, out, &|task, q, tile, thread| {
            tiles::TileTask { task, tiles }.run(&mut blocks.get(thread), q, tile);
        });
    }

    /// Calls `run(task, queries, result, thread)` for each KV head of each block of rows.
    fn for_each_block(
        &self,
        block_rows: usize,
        out: &RowsMut<'_>,
        run: &(dyn Fn(prefill::Task<'_>, Rows<'_>, RowsMut<'_>, usize) + Sync),
    ) {
        let &Self { team, tier, params, geo, memory, q, seqs } = self;
        let group = params.n_heads / params.n_kv_heads;
        let n_blocks = |seq: &AttnSeq<'_>| {
            if seq.generated { 0 } else { seq.rows.len().div_ceil(block_rows) }
        };
        let n_tasks = seqs.iter().map(n_blocks).sum::<usize>() * params.n_kv_heads;
        team.parallel_for(n_tasks, &|task, thread| {
            let (kv_head, mut block) = (task % params.n_kv_heads, task / params.n_kv_heads);
            for seq in seqs {
                if block >= n_blocks(seq) {
                    block -= n_blocks(seq);
                    continue;
                }
                // The last rows see the most positions, so their blocks start first.
                let first = seq.rows.start + (n_blocks(seq) - 1 - block) * block_rows;
                let rows = first..seq.rows.end.min(first + block_rows);
                let heads = kv_head * group..(kv_head + 1) * group;
                let cols = heads.start * params.head_dim..heads.end * params.head_dim;
                // SAFETY: sequences share no rows, blocks of one sequence share none, and
                // KV heads share no columns, so every task has a tile of its own. `out` is
                // not used otherwise during the loop.
                let tile = unsafe { out.tile(rows.clone(), cols.clone()) };
                let q = q.slice_rows(rows.clone()).slice_cols(cols);
                let task = prefill::Task { tier, params, geo, memory, seq, kv_head, rows };
                run(task, q, tile, thread);
                return;
            }
        });
    }
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
    assert!(params.alibi.is_none_or(|s| s.len() == params.n_heads), "a slope for each head");
    assert!(
        scratch.blocks.len() >= team.n_threads()
            && scratch.limits.head_dim >= params.head_dim
            && scratch.limits.group >= params.n_heads / params.n_kv_heads
            && scratch.limits.n_kv_heads >= params.n_kv_heads,
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
        if let Some(reaches) = seq.reaches {
            assert!(!seq.generated, "generated rows see up to their own positions");
            assert_eq!(reaches.len(), seq.rows.len(), "a reach for each row");
            let end = seq.first_pos + seq.rows.len();
            let within =
                |(pos, &reach): (usize, &u32)| pos < reach as usize && reach as usize <= end;
            let mut all = (seq.first_pos..).zip(reaches);
            assert!(reaches.is_sorted() && all.all(within), "reaches {reaches:?} to {end}");
        }
        let first = seen(params, seq, seq.rows.start).start / geo.page_len();
        let seen_end = seq.first_pos + seq.rows.len();
        let end = seen_end.div_ceil(geo.page_len());
        let held = seq.first_page..seq.first_page + seq.pages.len();
        assert!(held.start <= first && end <= held.end, "pages {held:?} of {first}..{end}");
        let kv_len = seen_end.min(params.window.unwrap_or(seen_end));
        assert!(kv_len <= scratch.limits.kv_len, "{kv_len} positions exceed the scratch");
    }
    assert!(n_rows <= q.n_rows(), "{n_rows} rows of {}", q.n_rows());
}

/// The positions that a row of a sequence sees.
fn seen(params: &AttnParams<'_>, seq: &AttnSeq<'_>, row: usize) -> Range<usize> {
    let pos = seq.first_pos + (row - seq.rows.start);
    let start = match params.window {
        None => 0,
        Some(window) if params.chunked => pos / window * window,
        Some(window) => (pos + 1).saturating_sub(window),
    };
    let end = seq.reaches.map_or(pos + 1, |reaches| reaches[row - seq.rows.start] as usize);
    start..end
}

/// Byte offset in the memory of a position's key.
fn kv_row(geo: &KvGeometry, seq: &AttnSeq<'_>, kv_head: usize, pos: usize) -> usize {
    let page = seq.pages[pos / geo.page_len() - seq.first_page] as usize;
    geo.start(Part::K, page, kv_head, pos % geo.page_len())
}

#[cfg(test)]
mod tests;
