//! Attention of a decode row over one split of its context, for all heads that share keys and values:
//! scores, weights and weighted values. Keys and values are read in their stored type. The numbers of
//! keys and heads that are taken at a time do not affect the bits.

use std::marker::PhantomData;
use std::ops::Range;

use super::decode::{SCORES_LEN, padded, result_len};
use super::element::Element;
use super::softmax::{Alibi, Running, ScoreScale};
use crate::lanes::{Kernel, Lanes};
use crate::streams::{PREFETCH_FAR_BYTES, prefers_one};

/// Prefetch distance, in keys, into the L1 cache.
const PREFETCH_KEYS: usize = 16;

/// The prefetch distance, and the cache that is prefetched to.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    n_keys: usize,
    is_far: bool, // into the second cache
}

impl Ahead {
    /// The distance and cache for this processor.
    pub(super) fn of(head_bytes: usize) -> Self {
        let is_far = prefers_one();
        let far = PREFETCH_FAR_BYTES.div_ceil(head_bytes).min(SCORES_LEN / 2);
        Self { n_keys: if is_far { far } else { PREFETCH_KEYS }, is_far }
    }
}

/// Computes scores, weights and weighted values of a split, for all heads of a group.
pub(super) struct SplitKernel<'a, E> {
    pub(super) memory: &'a [u8],
    pub(super) starts: &'a [usize], // [SCORES_LEN], each the start of a key in the memory
    pub(super) n_keys: usize,       // at least 1
    pub(super) v_offset: isize,     // from a key to its value
    pub(super) head_bytes: usize,
    pub(super) ahead: Ahead,
    pub(super) head_dim: usize,
    pub(super) scale: ScoreScale,
    pub(super) alibi: Option<Alibi<'a>>,
    pub(super) q: &'a [f32],          // [group, padded]
    pub(super) scores: &'a mut [f32], // [group, SCORES_LEN]
    pub(super) result: &'a mut [f32], // [group, result_len]
    pub(super) ty: PhantomData<E>,
}

impl<E: Element> Kernel for SplitKernel<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        let group = self.q.len() / padded(self.head_dim);
        // At most four heads at a time, so that registers are left for keys, in parts of similar size.
        let n_parts = group.div_ceil(4);
        for part in 0..n_parts {
            let heads = part * group / n_parts..(part + 1) * group / n_parts;
            l.run(Part { split: &mut self, heads });
        }
    }
}

/// Some heads of a split.
struct Part<'a, 'b, E> {
    split: &'a mut SplitKernel<'b, E>,
    heads: Range<usize>,
}

impl<E: Element> Kernel for Part<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { split, heads } = self;
        match (heads.len(), L::IS_WIDE) {
            (1, true) => split.score_pairs::<L, 1, 4>(l, heads.start),
            (2, true) => split.score_pairs::<L, 2, 4>(l, heads.start),
            (3, true) => split.score_pairs::<L, 3, 4>(l, heads.start),
            (4, true) => split.score_pairs::<L, 4, 4>(l, heads.start),
            (1, false) => split.score::<L, 1, 4>(l, heads.start),
            (2, false) => split.score::<L, 2, 4>(l, heads.start),
            (3, false) => split.score::<L, 3, 3>(l, heads.start),
            (4, false) => split.score::<L, 4, 2>(l, heads.start),
            (n, _) => unreachable!("{n} heads at a time"),
        }
        for head in heads.clone() {
            let scores = &mut split.scores[head * SCORES_LEN..][..SCORES_LEN];
            let mut running = Running::new(None);
            let slope = split.alibi.map(|alibi| alibi.of(head));
            running.add(l, scores, &(0..split.n_keys), split.scale, slope);
            let len = result_len(split.head_dim);
            split.result[head * len] = running.max;
            split.result[head * len + 1] = running.sum;
        }
        // The vectors have sixteen columns.
        match (heads.len(), L::IS_WIDE) {
            (1, _) => split.accumulate::<L, 1, 4>(l, heads.start),
            (2, true) => split.accumulate::<L, 2, 4>(l, heads.start),
            (3, true) => split.accumulate::<L, 3, 4>(l, heads.start),
            (4, true) => split.accumulate::<L, 4, 4>(l, heads.start),
            (2, false) => split.accumulate::<L, 2, 2>(l, heads.start),
            (3, false) => split.accumulate::<L, 3, 2>(l, heads.start),
            (4, false) => split.accumulate::<L, 4, 1>(l, heads.start),
            (n, _) => unreachable!("{n} heads at a time"),
        }
    }
}

/// Computes `dots[h][j] + q[h][i] * k[j]` per lane.
#[inline(always)]
fn multiply<L: Lanes, const H: usize, const K: usize>(
    l: L,
    mut dots: [[L::V; K]; H],
    q: [&[[f32; 8]]; H],
    i: usize,
    k: [L::V; K],
) -> [[L::V; K]; H] {
    for (dots, q) in dots.iter_mut().zip(&q) {
        let q = l.load(&q[i]);
        for (dot, k) in dots.iter_mut().zip(&k) {
            *dot = l.fma(q, *k, *dot);
        }
    }
    dots
}

impl<E: Element> SplitKernel<'_, E> {
    /// The start of a key; with an offset, that of its value.
    #[inline(always)]
    fn head(&self, key: usize, offset: isize) -> *const u8 {
        self.memory.as_ptr().wrapping_add(self.starts[key]).wrapping_offset(offset)
    }

    /// Prefetches the cache lines of a key or value.
    #[inline(always)]
    fn prefetch<L: Lanes>(&self, l: L, head: *const u8) {
        for line in (0..self.head_bytes).step_by(64) {
            let line = head.wrapping_add(line);
            if self.ahead.is_far { l.prefetch_far(line) } else { l.prefetch(line) }
        }
    }

    /// Computes dot products of `H` heads with all keys, `K` keys at a time.
    #[inline(always)]
    fn score<L: Lanes, const H: usize, const K: usize>(&mut self, l: L, first: usize) {
        let (head_dim, head_len) = (self.head_dim, padded(self.head_dim));
        let n_vectors = head_len / 8;
        let mut q = [[].as_slice(); H];
        for (h, q) in q.iter_mut().enumerate() {
            *q = &self.q[(first + h) * head_len..][..head_len].as_chunks::<8>().0[..n_vectors];
        }
        for key in (0..self.n_keys).step_by(K) {
            let mut k = [std::ptr::null(); K];
            for (j, k) in k.iter_mut().enumerate() {
                *k = self.head(key + j, 0);
                // Behind the last keys, the first values are prefetched.
                let ahead = key + j + self.ahead.n_keys;
                if ahead < self.n_keys {
                    self.prefetch(l, self.head(ahead, 0));
                } else if ahead - self.n_keys < self.ahead.n_keys {
                    self.prefetch(l, self.head(ahead - self.n_keys, self.v_offset));
                }
            }
            let mut dots = [[l.splat(0.0); K]; H];
            let mut k8 = [l.splat(0.0); K];
            // Four vectors cover a block of the quantized types.
            for block in 0..head_dim / 32 {
                for i in 0..4 {
                    for (k8, &k) in k8.iter_mut().zip(&k) {
                        // SAFETY: every key was found to be inside the memory.
                        *k8 = unsafe { E::load(l, k, 4 * block + i) };
                    }
                    dots = multiply(l, dots, q, 4 * block + i, k8);
                }
            }
            for i in head_dim / 32 * 4..head_dim / 8 {
                for (k8, &k) in k8.iter_mut().zip(&k) {
                    // SAFETY: every key was found to be inside the memory.
                    *k8 = unsafe { E::load(l, k, i) };
                }
                dots = multiply(l, dots, q, i, k8);
            }
            if head_dim % 8 > 0 {
                let i = head_dim / 8;
                for (k8, &k) in k8.iter_mut().zip(&k) {
                    // SAFETY: every key was found to be inside the memory.
                    *k8 = unsafe { E::load_tail(l, k, i, head_dim % 8) };
                }
                dots = multiply(l, dots, q, i, k8);
            }
            if H == 4 {
                // One transposed sum covers the four heads of a key.
                for (j, key) in (key..key + K).enumerate() {
                    let sums = l.sums([dots[0][j], dots[1 % H][j], dots[2 % H][j], dots[3 % H][j]]);
                    for (h, sum) in sums.iter().enumerate() {
                        self.scores[(first + h) * SCORES_LEN + key] = *sum;
                    }
                }
            } else {
                for (h, dots) in dots.iter().enumerate() {
                    let sums = l.sums([dots[0], dots[1 % K], dots[2 % K], dots[3 % K]]);
                    let at = (first + h) * SCORES_LEN + key;
                    self.scores[at..at + K].copy_from_slice(&sums[..K]);
                }
            }
        }
    }

    /// As [`Self::score`], for `2 * P` keys at a time, two per vector of sixteen lanes.
    #[inline(always)]
    fn score_pairs<L: Lanes, const H: usize, const P: usize>(&mut self, l: L, first: usize) {
        let (head_dim, head_len) = (self.head_dim, padded(self.head_dim));
        for key in (0..self.n_keys).step_by(2 * P) {
            let mut k = [[std::ptr::null(); 2]; P];
            for (j, k) in k.as_flattened_mut().iter_mut().enumerate() {
                *k = self.head(key + j, 0);
                // Behind the last keys, the first values are prefetched.
                let ahead = key + j + self.ahead.n_keys;
                if ahead < self.n_keys {
                    self.prefetch(l, self.head(ahead, 0));
                } else if ahead - self.n_keys < self.ahead.n_keys {
                    self.prefetch(l, self.head(ahead - self.n_keys, self.v_offset));
                }
            }
            let mut dots = [[l.splat16(0.0); P]; H];
            let n_whole = head_dim / 8;
            for i in 0..n_whole {
                let mut k16 = [l.splat16(0.0); P];
                for (k16, &pair) in k16.iter_mut().zip(&k) {
                    // SAFETY: every key was found to be inside the memory.
                    *k16 = unsafe { E::load_two(l, pair, [i; 2]) };
                }
                for (h, dots) in dots.iter_mut().enumerate() {
                    let q8 = self.query(l, first + h, head_len, i);
                    let q16 = l.join([q8, q8]);
                    for (dot, k16) in dots.iter_mut().zip(&k16) {
                        *dot = l.fma16(q16, *k16, *dot);
                    }
                }
            }
            if head_dim % 8 > 0 {
                for (h, dots) in dots.iter_mut().enumerate() {
                    let q8 = self.query(l, first + h, head_len, n_whole);
                    for (dot, [a, b]) in dots.iter_mut().zip(k) {
                        // SAFETY: every key was found to be inside the memory.
                        let halves = unsafe {
                            let (n, rest) = (n_whole, head_dim % 8);
                            [E::load_tail(l, a, n, rest), E::load_tail(l, b, n, rest)]
                        };
                        *dot = l.fma16(l.join([q8, q8]), l.join(halves), *dot);
                    }
                }
            }
            for (h, dots) in dots.iter().enumerate() {
                let at = (first + h) * SCORES_LEN + key;
                let scores = &mut self.scores[at..at + 2 * P];
                for (dots, scores) in dots.as_chunks::<2>().0.iter().zip(scores.chunks_mut(4)) {
                    let ([a, b], [c, d]) = (l.halves(dots[0]), l.halves(dots[1]));
                    scores.copy_from_slice(&l.sums([a, b, c, d]));
                }
            }
        }
    }

    /// Vector `i` of eight values of a query.
    #[inline(always)]
    fn query<L: Lanes>(&self, l: L, head: usize, head_len: usize, i: usize) -> L::V {
        l.load(&self.q[head * head_len..][..head_len].as_chunks::<8>().0[i])
    }

    /// Computes the weighted sums of the values for `H` heads, `C` vectors of sixteen columns at a time.
    #[inline(always)]
    fn accumulate<L: Lanes, const H: usize, const C: usize>(&mut self, l: L, first: usize) {
        let whole = self.head_dim / (16 * C);
        for i in 0..whole {
            self.accumulate_columns::<L, H, C>(l, first, C * i);
        }
        for i in C * whole..self.head_dim / 16 {
            self.accumulate_columns::<L, H, 1>(l, first, i);
        }
        if !self.head_dim.is_multiple_of(16) {
            self.accumulate_rest::<L, H>(l, first);
        }
    }

    /// The start of a key's value. With the first columns, later values are prefetched.
    #[inline(always)]
    fn value<L: Lanes>(&self, l: L, key: usize, is_first: bool) -> *const u8 {
        if is_first && key + self.ahead.n_keys < self.n_keys {
            self.prefetch(l, self.head(key + self.ahead.n_keys, self.v_offset));
        }
        self.head(key, self.v_offset)
    }

    #[inline(always)]
    fn accumulate_columns<L: Lanes, const H: usize, const C: usize>(
        &mut self,
        l: L,
        first: usize,
        vector: usize, // of sixteen columns
    ) {
        let mut sums = [[l.splat16(0.0); C]; H];
        for key in 0..self.n_keys {
            let value = self.value(l, key, vector == 0);
            // One vector of values at a time, because sums and weights take the other registers.
            let mut w16 = [l.splat16(0.0); H];
            for (h, w16) in w16.iter_mut().enumerate() {
                *w16 = l.splat16(self.scores[(first + h) * SCORES_LEN..][..self.n_keys][key]);
            }
            for c in 0..C {
                let i = 2 * (vector + c);
                // SAFETY: every value was found to be inside the memory.
                let v16 = unsafe { E::load_two(l, [value; 2], [i, i + 1]) };
                for (sums, w16) in sums.iter_mut().zip(&w16) {
                    sums[c] = l.fma16(*w16, v16, sums[c]);
                }
            }
        }
        let len = result_len(self.head_dim);
        for (h, sums) in sums.into_iter().enumerate() {
            let out = &mut self.result[(first + h) * len..][..len].as_chunks_mut::<8>().0;
            for (c, sum) in sums.into_iter().enumerate() {
                let [low, high] = l.halves(sum);
                l.store(low, &mut out[1 + 2 * (vector + c)]);
                l.store(high, &mut out[2 + 2 * (vector + c)]);
            }
        }
    }

    /// [`Self::accumulate`] for the columns after the last whole vector of sixteen.
    #[inline(always)]
    fn accumulate_rest<L: Lanes, const H: usize>(&mut self, l: L, first: usize) {
        for i in self.head_dim / 16 * 2..self.head_dim.div_ceil(8) {
            let n = self.head_dim - 8 * i;
            let mut sums = [l.splat(0.0); H];
            for key in 0..self.n_keys {
                let value = self.value(l, key, i == 0);
                // SAFETY: every value was found to be inside the memory.
                let v8 = unsafe {
                    if n >= 8 { E::load(l, value, i) } else { E::load_tail(l, value, i, n) }
                };
                for (h, sum) in sums.iter_mut().enumerate() {
                    let w8 = l.splat(self.scores[(first + h) * SCORES_LEN + key]);
                    *sum = l.fma(w8, v8, *sum);
                }
            }
            let len = result_len(self.head_dim);
            for (h, sum) in sums.into_iter().enumerate() {
                let out = &mut self.result[(first + h) * len..][..len].as_chunks_mut::<8>().0;
                l.store(sum, &mut out[1 + i]);
            }
        }
    }
}
