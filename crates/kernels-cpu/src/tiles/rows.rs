//! Activations as BF16 tiles, the input of the products on tiles.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::ops::Range;

use super::{PAIR_LEN, STEP_LEN, TILE_LEN, TilePair, to_pair};
use crate::{Pages, Rows, RowsMut, Team, Tier};

/// Size of a pair of tiles in f32 elements.
const PAIR_WORDS: usize = size_of::<TilePair>() / size_of::<f32>();

/// Steps of 32 rows that are packed per task.
const STEPS_PER_TASK: usize = 16;

/// Activation rows rounded to BF16 (nearest, ties to even; subnormal values become zero), in the order
/// in which [`matmul_bf16`](crate::matmul_bf16) reads them.
///
/// Every 32 rows are a run of tile pairs, one pair per 32 columns. Columns past the last one are zero.
#[derive(Debug)]
pub struct Bf16Rows {
    n_rows: usize,
    n_cols: usize,
    memory: Pages, // [max_rows / 32 rounded up, max_cols / 32 rounded up] pairs of tiles
}

impl Bf16Rows {
    /// Allocates for `max_rows` rows of `max_cols` values; `None` if there is too little memory.
    pub fn with_capacity(max_rows: usize, max_cols: usize) -> Option<Self> {
        let memory = Pages::zeroed(Self::bytes_for(max_rows, max_cols))?;
        Some(Self { n_rows: 0, n_cols: 0, memory })
    }

    /// Bytes that [`Self::with_capacity`] allocates.
    pub const fn bytes_for(max_rows: usize, max_cols: usize) -> usize {
        let n_pairs = max_rows.div_ceil(PAIR_LEN).saturating_mul(max_cols.div_ceil(STEP_LEN));
        n_pairs.saturating_mul(size_of::<TilePair>())
    }

    /// Number of rows.
    pub const fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Values per row.
    pub const fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Steps per row.
    const fn n_steps(&self) -> usize {
        self.n_cols.div_ceil(STEP_LEN)
    }

    /// Some steps of the 32 rows from row `32 * block` on.
    #[inline]
    pub(crate) fn block(&self, block: usize, steps: Range<usize>) -> &[TilePair] {
        let pairs: &[TilePair] = bytemuck::cast_slice(&self.memory);
        &pairs[block * self.n_steps()..][steps]
    }

    /// Replaces the rows by those of `x`. Each row depends on that row of `x` alone, and its
    /// bytes are the same on every tier.
    ///
    /// # Panics
    /// If `x` is larger than the capacity.
    pub fn pack(&mut self, team: &Team, tier: Tier, x: Rows<'_>) {
        self.fill(team, tier, x.n_rows(), x.n_cols(), |i| Some(x.row(i)));
    }

    /// Replaces the rows by `n_rows` rows of `n_cols` values that `row` returns. Where it returns `None` the
    /// row keeps stale values, and its products are meaningless.
    pub(crate) fn fill<'a>(
        &mut self,
        team: &Team,
        tier: Tier,
        n_rows: usize,
        n_cols: usize,
        row: impl Fn(usize) -> Option<&'a [f32]> + Sync,
    ) {
        let needed = Self::bytes_for(n_rows, n_cols);
        assert!(needed <= self.memory.len(), "room for {n_rows} rows of {n_cols} values");
        (self.n_rows, self.n_cols) = (n_rows, n_cols);
        let n_blocks = n_rows.div_ceil(PAIR_LEN);
        let width = self.n_steps() * PAIR_WORDS;
        let words: &mut [f32] = bytemuck::cast_slice_mut(&mut self.memory[..needed]);
        let blocks = RowsMut::new(words, n_blocks, width);
        let grain = STEPS_PER_TASK * PAIR_WORDS;
        team.for_each_tile_mut(blocks, 1, grain, |mut tile, block, word, _thread| {
            let pairs: &mut [TilePair] = bytemuck::cast_slice_mut(tile.row_mut(0));
            let first = word / PAIR_WORDS * STEP_LEN;
            let cols = first..n_cols.min(first + pairs.len() * STEP_LEN);
            let rows = block * PAIR_LEN..n_rows.min((block + 1) * PAIR_LEN);
            for (i, idx) in rows.enumerate() {
                let Some(x) = row(idx) else { continue };
                let x = &x[cols.clone()];
                let out = Strip { pairs: &mut *pairs, row: i };
                match tier.avx512_bf16() {
                    None => out.pack(x),
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: the token exists only if the instructions were detected.
                    Some(_) => unsafe { out.pack_avx512(x) },
                }
            }
        });
    }
}

/// One row of a block, in the tiles of some steps.
pub(crate) struct Strip<'a> {
    pub(crate) pairs: &'a mut [TilePair],
    pub(crate) row: usize,
}

impl Strip<'_> {
    /// The row's pairs of values in a step.
    #[inline(always)]
    fn words(&mut self, step: usize) -> &mut [u32; TILE_LEN] {
        &mut self.pairs[step][self.row / TILE_LEN].0[self.row % TILE_LEN]
    }

    /// Packs a row, and fills its last step up with zeros.
    pub(crate) fn pack(mut self, x: &[f32]) {
        let (steps, rest) = x.as_chunks::<STEP_LEN>();
        for (step, x) in steps.iter().enumerate() {
            for (word, x) in self.words(step).iter_mut().zip(x.as_chunks::<2>().0) {
                *word = to_pair(x[0], x[1]);
            }
        }
        if !rest.is_empty() {
            let mut x = [0.0; STEP_LEN];
            x[..rest.len()].copy_from_slice(rest);
            let out = self.words(steps.len());
            for (word, x) in out.iter_mut().zip(x.as_chunks::<2>().0) {
                *word = to_pair(x[0], x[1]);
            }
        }
    }

    /// The twin of [`Self::pack`].
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    pub(crate) fn pack_avx512(mut self, x: &[f32]) {
        let (steps, rest) = x.as_chunks::<STEP_LEN>();
        for (step, x) in steps.iter().enumerate() {
            store(to_pairs(x), self.words(step));
        }
        if !rest.is_empty() {
            let mut x = [0.0; STEP_LEN];
            x[..rest.len()].copy_from_slice(rest);
            store(to_pairs(&x), self.words(steps.len()));
        }
    }
}

/// Rounds 32 values to pairs, in order.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn to_pairs(x: &[f32; STEP_LEN]) -> __m512i {
    // SAFETY: the loads read the 32 values of the array.
    let (low, high) =
        unsafe { (_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(TILE_LEN))) };
    pairs_of(low, high)
}

/// Rounds two vectors of 16 values to pairs, in order.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(crate) fn pairs_of(low: __m512, high: __m512) -> __m512i {
    // SAFETY: both types are 512 bits of which any pattern is a value.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) }
}

/// Stores sixteen pairs.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn store(v: __m512i, out: &mut [u32; TILE_LEN]) {
    // SAFETY: the store writes the 64 bytes of the array.
    unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), v) }
}

/// Rounds two vectors to pairs of one value of each.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(crate) fn interleave(low: __m512, high: __m512) -> __m512i {
    const ORDER: [u16; 2 * TILE_LEN] = {
        let mut order = [0; 2 * TILE_LEN];
        let mut i = 0;
        while i < order.len() {
            order[i] = (i / 2 + i % 2 * TILE_LEN) as u16;
            i += 1;
        }
        order
    };
    // SAFETY: the load reads the 64 bytes of the array.
    let order = unsafe { _mm512_loadu_si512(ORDER.as_ptr().cast()) };
    _mm512_permutexvar_epi16(order, pairs_of(low, high))
}
