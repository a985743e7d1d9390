//! Packs queries, keys, weights and values to BF16 tiles.
//!
//! Queries and keys are split into two BF16: the one nearest to the value, and the one nearest to the
//! rounding error. The bytes are the same on every tier.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::ops::Range;

use super::tiles::{KEY_STEPS, N_KEYS};
use crate::Tier;
use crate::tiles::{STEP_LEN, SplitPair, Strip, TILE_LEN, TilePair, to_bf16, to_pair};
#[cfg(target_arch = "x86_64")]
use crate::tiles::{interleave, pairs_of, store, transpose};

/// Splits a value into two BF16, as floats.
#[inline(always)]
fn split(x: f32) -> [f32; 2] {
    let high = f32::from_bits(u32::from(to_bf16(x)) << 16);
    [high, x - high]
}

/// Packs `scale * x` to row `row` of tile pairs, one pair per 32 values.
pub(super) fn split_row(tier: Tier, x: &[f32], scale: f32, row: usize, pairs: &mut [SplitPair]) {
    let (tile, row) = (row / TILE_LEN, row % TILE_LEN);
    for (x, [high, low]) in x.chunks(STEP_LEN).zip(pairs) {
        let mut scaled = [0.0; STEP_LEN];
        scaled.iter_mut().zip(x).for_each(|(scaled, x)| *scaled = x * scale);
        let words = [&mut high[tile].0[row], &mut low[tile].0[row]];
        match tier.avx512_bf16() {
            None => split_words(&scaled, words),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the token exists only if the instructions were detected.
            Some(_) => unsafe { split_words_avx512(&scaled, words) },
        }
    }
}

fn split_words(x: &[f32; STEP_LEN], [high, low]: [&mut [u32; TILE_LEN]; 2]) {
    let words = high.iter_mut().zip(low);
    for ((high, low), &[a, b]) in words.zip(x.as_chunks::<2>().0) {
        let ([a_high, a_low], [b_high, b_low]) = (split(a), split(b));
        (*high, *low) = (to_pair(a_high, b_high), to_pair(a_low, b_low));
    }
}

/// The twin of [`split_words`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn split_words_avx512(x: &[f32; STEP_LEN], [high, low]: [&mut [u32; TILE_LEN]; 2]) {
    let [upper, lower] = split_vectors(x);
    store(upper, high);
    store(lower, low);
}

/// The first BF16 of 32 values, in pairs, and their second BF16.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn split_vectors(x: &[f32; STEP_LEN]) -> [__m512i; 2] {
    // SAFETY: the loads read the 32 values of the array.
    let (a, b) = unsafe { (_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(16))) };
    let upper = pairs_of(a, b);
    let as_floats = |halves: __m256i| {
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
    };
    let a_low = _mm512_sub_ps(a, as_floats(_mm512_castsi512_si256(upper)));
    let b_low = _mm512_sub_ps(b, as_floats(_mm512_extracti64x4_epi64::<1>(upper)));
    [upper, pairs_of(a_low, b_low)]
}

/// Packs sixteen keys to tile `tile` of tile pairs, one pair per 32 columns.
pub(super) fn split_keys(
    tier: Tier,
    keys: &[f32], // [TILE_LEN, padded head_dim]
    tile: usize,
    pairs: &mut [SplitPair],
) {
    let head_len = keys.len() / TILE_LEN;
    for (step, [high, low]) in pairs.iter_mut().enumerate() {
        let rows: [&[f32; STEP_LEN]; TILE_LEN] = std::array::from_fn(|key| {
            keys[key * head_len + step * STEP_LEN..].first_chunk().expect("whole steps")
        });
        let tiles = [&mut high[tile].0, &mut low[tile].0];
        match tier.avx512_bf16() {
            None => split_rows(&rows, tiles),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the token exists only if the instructions were detected.
            Some(_) => unsafe { split_rows_avx512(&rows, tiles) },
        }
    }
}

/// The words of a tile, by row.
type Words = [[u32; TILE_LEN]; TILE_LEN];

fn split_rows(rows: &[&[f32; STEP_LEN]; TILE_LEN], [high, low]: [&mut Words; 2]) {
    for (n, row) in rows.iter().enumerate() {
        let (mut upper, mut lower) = ([0; TILE_LEN], [0; TILE_LEN]);
        split_words(row, [&mut upper, &mut lower]);
        for k in 0..TILE_LEN {
            (high[k][n], low[k][n]) = (upper[k], lower[k]);
        }
    }
}

/// The twin of [`split_rows`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn split_rows_avx512(rows: &[&[f32; STEP_LEN]; TILE_LEN], [high, low]: [&mut Words; 2]) {
    let mut upper = [_mm512_setzero_si512(); TILE_LEN];
    let mut lower = upper;
    for (row, (upper, lower)) in rows.iter().zip(upper.iter_mut().zip(&mut lower)) {
        [*upper, *lower] = split_vectors(row);
    }
    for (mut lines, words) in [(upper, high), (lower, low)] {
        transpose(&mut lines);
        for (line, words) in lines.into_iter().zip(words) {
            store(line, words);
        }
    }
}

/// Packs weights to row `row` of tile pairs.
pub(super) fn pack_row(tier: Tier, weights: &[f32], row: usize, pairs: &mut [TilePair]) {
    let strip = Strip { pairs, row };
    match tier.avx512_bf16() {
        None => strip.pack(weights),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token exists only if the instructions were detected.
        Some(_) => unsafe { strip.pack_avx512(weights) },
    }
}

/// Packs values to tiles, in pairs of positions.
pub(super) fn pack_values(
    tier: Tier,
    values: &[f32],         // [N_KEYS, padded head_dim]
    pairs: &mut [TilePair], // [padded head_dim / 32, KEY_STEPS]
) {
    match tier.avx512_bf16() {
        None => pack_values_of(&(0..N_KEYS), values, pairs),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token exists only if the instructions were detected.
        Some(_) => unsafe { pack_values_avx512(values, pairs) },
    }
}

/// [`pack_values`] with zeros for the positions that are not in `keys`.
pub(super) fn pack_values_of(keys: &Range<usize>, values: &[f32], pairs: &mut [TilePair]) {
    let head_len = values.len() / N_KEYS;
    let value = |key: usize, i: usize| {
        if keys.contains(&key) { values[key * head_len + i] } else { 0.0 }
    };
    for (i, pair) in pairs.iter_mut().enumerate() {
        let (col, key) = (i / KEY_STEPS * STEP_LEN, i % KEY_STEPS * STEP_LEN);
        for (half, tile) in pair.iter_mut().enumerate() {
            for (k, words) in tile.0.iter_mut().enumerate() {
                for (n, word) in words.iter_mut().enumerate() {
                    let (key, col) = (key + 2 * k, col + half * TILE_LEN + n);
                    *word = to_pair(value(key, col), value(key + 1, col));
                }
            }
        }
    }
}

/// The twin of [`pack_values_of`] for all positions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn pack_values_avx512(values: &[f32], pairs: &mut [TilePair]) {
    let head_len = values.len() / N_KEYS;
    for (i, pair) in pairs.iter_mut().enumerate() {
        let (col, key) = (i / KEY_STEPS * STEP_LEN, i % KEY_STEPS * STEP_LEN);
        for (half, tile) in pair.iter_mut().enumerate() {
            for (k, words) in tile.0.iter_mut().enumerate() {
                let at = (key + 2 * k) * head_len + col + half * TILE_LEN;
                let (low, high) = (&values[at..][..TILE_LEN], &values[at + head_len..][..TILE_LEN]);
                // SAFETY: the loads read the sixteen values of each slice.
                let (low, high) =
                    unsafe { (_mm512_loadu_ps(low.as_ptr()), _mm512_loadu_ps(high.as_ptr())) };
                store(interleave(low, high), words);
            }
        }
    }
}
