//! Attention of decode rows: one query row against all keys and values that it sees.
//!
//! Keys and values are read in their stored type, once for all query heads that share them. The
//! positions are cut into splits at absolute multiples of [`SPLIT_LEN`]. Each split has its own softmax,
//! and the results of the splits are merged in order. So all threads have work even if a model has few
//! heads, and the bits do not depend on the number of threads.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use super::element::with_element;
use super::softmax::{Alibi, Running, ScoreScale, exp2_of};
use super::split::{Ahead, SplitKernel};
use super::{AttnParams, AttnSeq, kv_row, seen};
use crate::lanes::{Kernel, Lanes, dispatch};
use crate::{KvGeometry, PerThread, Rows, RowsMut, Team, Tier};

/// Positions per split.
const SPLIT_LEN: usize = 256;

/// Scores of a query head in a split, with padding for a tile of keys past the end.
pub(super) const SCORES_LEN: usize = SPLIT_LEN + 16;

/// Number of rows whose splits are computed in one parallel loop.
const WAVE_LEN: usize = 64;

/// Minimum number of splits, over all KV heads, that the scratch has room for, so that rows with short
/// contexts share a loop.
const MIN_SPLITS: usize = 256;

/// Number of multiply-adds below which one thread computes a wave.
const SERIAL_WORK: usize = 64 * 1024;

/// Elements of a head, rounded up to whole vectors.
pub(super) const fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(8)
}

/// Elements of one head's result in a split: the maximum, the sum, and from element 8 on the weighted
/// values.
pub(super) const fn result_len(head_dim: usize) -> usize {
    8 + padded(head_dim)
}

/// The splits that overlap a range of positions.
fn splits_of(seen: &Range<usize>) -> Range<usize> {
    seen.start / SPLIT_LEN..seen.end.div_ceil(SPLIT_LEN)
}

/// Memory that all threads share in a parallel loop.
#[derive(Debug)]
pub(super) struct Shared {
    results: Vec<f32>,    // [splits, group, result_len]
    left: Vec<AtomicU32>, // [WAVE_LEN, n_kv_heads], splits that are not done
}

impl Shared {
    /// Allocates for rows that see up to `max_kv_len` positions.
    pub(super) fn new(
        max_head_dim: usize,
        max_group: usize,
        max_kv_heads: usize,
        max_kv_len: usize,
    ) -> Self {
        // A window may begin in the middle of a split.
        let n_splits = (max_kv_len.div_ceil(SPLIT_LEN) + 1).saturating_mul(max_kv_heads);
        let n_results = n_splits.max(MIN_SPLITS).saturating_mul(max_group);
        Self {
            results: vec![0.0; n_results.saturating_mul(result_len(max_head_dim))],
            left: (0..WAVE_LEN * max_kv_heads).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Number of splits, over all KV heads, that there is room for.
    fn capacity(&self, params: &AttnParams<'_>) -> usize {
        let group = params.n_heads / params.n_kv_heads;
        self.results.len() / (group * result_len(params.head_dim)) / params.n_kv_heads
    }
}

/// One thread's memory for a split.
#[derive(Debug)]
pub(super) struct Split {
    q: Vec<f32>,        // [group, padded], scaled
    scores: Vec<f32>,   // [group, SCORES_LEN], then the weights
    starts: Vec<usize>, // [SCORES_LEN], where the keys begin in the memory
}

impl Split {
    pub(super) fn new(max_head_dim: usize, max_group: usize) -> Self {
        Self {
            q: vec![0.0; max_group * padded(max_head_dim)],
            scores: vec![0.0; max_group * SCORES_LEN],
            starts: vec![0; SCORES_LEN],
        }
    }
}

/// Start of the memory for results, which tasks access at disjoint places.
struct Results(*mut f32);

// SAFETY: the pointer is used through `slice` and `read` alone, whose callers promise
// that no element is written while another thread reaches it.
unsafe impl Sync for Results {}

impl Results {
    /// # Safety
    /// The elements are inside the memory, and nothing else reaches them while the slice
    /// lives.
    #[expect(clippy::mut_from_ref, reason = "callers promise that the slices are disjoint")]
    unsafe fn slice(&self, start: usize, len: usize) -> &mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }

    /// # Safety
    /// The elements are inside the memory, and nothing writes them while the slice lives.
    unsafe fn read(&self, start: usize, len: usize) -> &[f32] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.0.add(start), len) }
    }
}

/// A row of a wave.
#[derive(Clone, Debug, Default)]
struct WaveRow {
    seq: usize,
    row: usize,
    seen: Range<usize>,
    /// Number of splits per KV head that precede this row's splits in the wave.
    first: usize,
}

/// The arguments of [`super::attention`].
#[derive(Clone, Copy)]
pub(super) struct Decode<'a> {
    pub(super) team: &'a Team,
    pub(super) tier: Tier,
    pub(super) params: &'a AttnParams<'a>,
    pub(super) geo: &'a KvGeometry,
    pub(super) memory: &'a [u8],
    pub(super) q: Rows<'a>,
    pub(super) seqs: &'a [AttnSeq<'a>],
    pub(super) splits: &'a PerThread<Split>,
}

impl Decode<'_> {
    /// Computes all decode rows.
    pub(super) fn run(&self, shared: &mut Shared, out: &RowsMut<'_>) {
        let capacity = shared.capacity(self.params);
        let mut wave: [WaveRow; WAVE_LEN] = std::array::from_fn(|_| WaveRow::default());
        let (mut n_rows, mut n_splits) = (0, 0);
        let seqs = self.seqs.iter().enumerate().filter(|(_, seq)| seq.generated);
        for (s, seq) in seqs {
            for row in seq.rows.clone() {
                let seen = seen(self.params, seq, row);
                let n = splits_of(&seen).len();
                if n_rows == WAVE_LEN || n_splits + n > capacity {
                    self.run_wave(shared, &wave[..n_rows], n_splits, out);
                    (n_rows, n_splits) = (0, 0);
                }
                wave[n_rows] = WaveRow { seq: s, row, seen, first: n_splits };
                n_rows += 1;
                n_splits += n;
            }
        }
        self.run_wave(shared, &wave[..n_rows], n_splits, out);
    }

    fn run_wave(&self, shared: &mut Shared, wave: &[WaveRow], n_splits: usize, out: &RowsMut<'_>) {
        let n_kv_heads = self.params.n_kv_heads;
        for (i, row) in wave.iter().enumerate() {
            let n = splits_of(&row.seen).len() as u32;
            for left in &mut shared.left[i * n_kv_heads..][..n_kv_heads] {
                *left.get_mut() = n;
            }
        }
        let results = Results(shared.results.as_mut_ptr());
        let left = &shared.left[..];
        let task = |task: usize, thread: usize| {
            let (kv_head, split) = (task % n_kv_heads, task / n_kv_heads);
            let i = wave.partition_point(|row| row.first <= split) - 1;
            self.run_split(&wave[i], kv_head, split, &results, thread);
            // AcqRel: the thread that finishes the last split sees the results of all.
            if left[i * n_kv_heads + kv_head].fetch_sub(1, Ordering::AcqRel) == 1 {
                self.finish(&wave[i], kv_head, &results, out);
            }
        };
        let n_keys: usize = wave.iter().map(|row| row.seen.len()).sum();
        if n_keys * self.params.n_heads * self.params.head_dim < SERIAL_WORK {
            (0..n_splits * n_kv_heads).for_each(|idx| task(idx, 0));
        } else {
            self.team.parallel_for(n_splits * n_kv_heads, &task);
        }
    }

    /// Start and length of the results of a split of a wave.
    fn place(&self, split: usize, kv_head: usize) -> (usize, usize) {
        let group = self.params.n_heads / self.params.n_kv_heads;
        let len = group * result_len(self.params.head_dim);
        ((split * self.params.n_kv_heads + kv_head) * len, len)
    }

    /// Computes one split; `split` is its number within the wave.
    fn run_split(
        &self,
        row: &WaveRow,
        kv_head: usize,
        split: usize,
        results: &Results,
        thread: usize,
    ) {
        let head_dim = self.params.head_dim;
        let head_len = padded(head_dim);
        let group = self.params.n_heads / self.params.n_kv_heads;
        let scale = ScoreScale::new(self.params.scale, self.params.softcap);
        let mut scratch = self.splits.get(thread);
        let Split { q, scores, starts } = &mut *scratch;

        let heads = self.q.row(row.row)[kv_head * group * head_dim..].chunks_exact(head_dim);
        for (out, head) in q.chunks_exact_mut(head_len).zip(heads.take(group)) {
            out[head_dim..].fill(0.0);
            out.iter_mut().zip(head).for_each(|(out, q)| *out = q * scale.q);
        }

        let first_pos = (splits_of(&row.seen).start + split - row.first) * SPLIT_LEN;
        let keys = first_pos.max(row.seen.start)..(first_pos + SPLIT_LEN).min(row.seen.end);
        let seq = &self.seqs[row.seq];
        let v_offset = self.geo.v_offset_from_k();
        for (start, pos) in starts.iter_mut().zip(keys.clone()) {
            *start = kv_row(self.geo, seq, kv_head, pos);
            let end = (*start).max(start.wrapping_add_signed(v_offset)) + self.geo.head_bytes();
            assert!(end <= self.memory.len(), "a head in the memory");
        }
        // Keys past the end repeat the last one.
        let last = starts[keys.len() - 1];
        starts[keys.len()..].fill(last);

        // A decode row sees up to its own position.
        let slopes = self.params.alibi.map(|slopes| &slopes[kv_head * group..][..group]);
        let alibi = slopes.map(|slopes| Alibi::new(slopes, keys.start, row.seen.end - 1));
        let (start, len) = self.place(split, kv_head);
        // SAFETY: the capacity of the results bounds the splits of a wave, each split and KV
        // head has a place of its own, and nobody reads it before it is counted as done.
        let result = unsafe { results.slice(start, len) };
        with_element!(self.geo.ty(), E => {
            let split = SplitKernel::<E> {
                memory: self.memory,
                starts,
                n_keys: keys.len(),
                v_offset,
                head_bytes: self.geo.head_bytes(),
                ahead: Ahead::of(self.geo.head_bytes()),
                head_dim,
                scale,
                alibi,
                q: &q[..group * head_len],
                scores,
                result,
                ty: PhantomData,
            };
            dispatch(self.tier, split);
        });
    }

    /// Merges the splits of a row and KV head.
    fn finish(&self, row: &WaveRow, kv_head: usize, results: &Results, out: &RowsMut<'_>) {
        let group = self.params.n_heads / self.params.n_kv_heads;
        let width = group * self.params.head_dim;
        // SAFETY: rows of a wave are distinct and KV heads share no columns, so every task
        // that finishes a row has a tile of its own.
        let mut tile =
            unsafe { out.tile(row.row..row.row + 1, kv_head * width..(kv_head + 1) * width) };
        let (start, len) = self.place(row.first, kv_head);
        let n_splits = splits_of(&row.seen).len();
        // Elements from one split of this KV head to the next.
        let stride = len * self.params.n_kv_heads;
        let sinks = self.params.sinks.map(|sinks| &sinks[kv_head * group..][..group]);
        // SAFETY: all splits of the row are done, and nobody writes their results before the
        // wave ends. Places of other KV heads between them are not accessed, so the slices
        // are taken split by split.
        let result = |i: usize| unsafe { results.read(start + i * stride, len) };
        let head_dim = self.params.head_dim;
        dispatch(self.tier, Merge { head_dim, n_splits, sinks, result, out: tile.row_mut(0) });
    }
}

/// Merges the splits of one row and KV head.
struct Merge<'a, F> {
    head_dim: usize,
    n_splits: usize,
    sinks: Option<&'a [f32]>, // [group]
    result: F,                // split -> [group, result_len]
    out: &'a mut [f32],       // [group * head_dim]
}

impl<'r, F: Fn(usize) -> &'r [f32]> Kernel for Merge<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let len = result_len(self.head_dim);
        for (h, out) in self.out.chunks_exact_mut(self.head_dim).enumerate() {
            let head = |split: usize| &(self.result)(split)[h * len..][..len];
            let sink = Running::new(self.sinks.map(|sinks| sinks[h]));
            let max = (0..self.n_splits).fold(sink.max, |max, i| max.max(head(i)[0]));
            let mut sum = 0.0;
            if sink.sum > 0.0 {
                sum = exp2_of(l, sink.max - max);
            }
            out.fill(0.0);
            for i in 0..self.n_splits {
                let head = head(i);
                // A split whose scores are all minus infinity has no weight.
                let empty = head[0] == f32::NEG_INFINITY;
                let factor = if empty { 0.0 } else { exp2_of(l, head[0] - max) };
                sum = head[1].mul_add(factor, sum);
                for (out, value) in out.iter_mut().zip(&head[8..]) {
                    *out = value.mul_add(factor, *out);
                }
            }
            let inv = 1.0 / sum;
            out.iter_mut().for_each(|out| *out *= inv);
        }
    }
}
