//! The tile kernel of attention for AVX2.
//!
//! Two queries run side by side where they can. A query's own operations and
//! their order are the same alone and in a pair, so the bits are too.

use std::arch::x86_64::{
    __m128, __m256, _CMP_GT_OQ, _mm_add_ps, _mm_storeu_ps, _mm256_add_ps, _mm256_and_ps,
    _mm256_blendv_ps, _mm256_castps256_ps128, _mm256_cmp_ps, _mm256_extractf128_ps,
    _mm256_fmadd_ps, _mm256_hadd_ps, _mm256_max_ps, _mm256_mul_ps, _mm256_set1_ps, _mm256_setr_ps,
    _mm256_setzero_ps, _mm256_sub_ps,
};
use std::ops::Range;

use super::Tile;
use crate::elementwise::avx2::softcap_lanes;
use crate::lanes::{load, store, sum};
use crate::math::avx2::exp;

/// Adds a tile's keys and values to every query.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn run(tile: &mut Tile<'_>) {
    let n_queries = tile.seen.len();
    let mut query = 0;
    while query < n_queries {
        let pair = query + 1 < n_queries;
        // A pair in different rows scores what either sees; the softmax masks the rest.
        let n = if pair { 2 } else { 1 };
        let both = tile.seen[query].start..tile.seen[query + n - 1].end;
        if pair {
            score::<2>(tile, query, both);
        } else {
            score::<1>(tile, query, both);
        }
        let mut corrections = [1.0; 2];
        for (correction, query) in corrections.iter_mut().zip(query..query + n) {
            *correction = softmax(tile, query);
        }
        if pair && tile.seen[query] == tile.seen[query + 1] {
            accumulate::<2>(tile, query, corrections);
        } else {
            for (correction, query) in corrections.into_iter().zip(query..query + n) {
                accumulate::<1>(tile, query, [correction]);
            }
        }
        query += n;
    }
}

/// The sums of the lanes of four vectors.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum4(v: [__m256; 4]) -> __m128 {
    let halves = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps::<1>(halves))
}

/// Dot products of `R` queries with the keys at `range`, four keys at a time from a
/// multiple of four.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn score<const R: usize>(tile: &mut Tile<'_>, query: usize, range: Range<usize>) {
    let (head_len, tile_len) = (tile.head_len, tile.tile_len);
    let n = head_len / 8;
    let q: [&[[f32; 8]]; R] = std::array::from_fn(|r| row(tile.q, query + r, head_len, n));
    for key in (range.start / 4 * 4..range.end).step_by(4) {
        let k: [&[[f32; 8]]; 4] = std::array::from_fn(|j| row(tile.k, key + j, head_len, n));
        let mut dots = [[_mm256_setzero_ps(); 4]; R];
        for d in 0..n {
            let mut k8 = [_mm256_setzero_ps(); 4];
            for j in 0..4 {
                k8[j] = load(&k[j][d]);
            }
            for r in 0..R {
                let q8 = load(&q[r][d]);
                for j in 0..4 {
                    dots[r][j] = _mm256_fmadd_ps(q8, k8[j], dots[r][j]);
                }
            }
        }
        for (r, dots) in dots.into_iter().enumerate() {
            let out = &mut tile.scores[(query + r) * tile_len + key..][..4];
            // SAFETY: the slice holds the 16 bytes that the unaligned store writes.
            unsafe { _mm_storeu_ps(out.as_mut_ptr(), sum4(dots)) };
        }
    }
}

/// Row `i` of a padded matrix, as `n` vectors.
#[inline]
fn row(x: &[f32], i: usize, head_len: usize, n: usize) -> &[[f32; 8]] {
    &x[i * head_len..][..head_len].as_chunks::<8>().0[..n]
}

/// Turns a query's scores into weights, and returns the factor of what came before.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn softmax(tile: &mut Tile<'_>, query: usize) -> f32 {
    let seen = &tile.seen[query];
    let scores = &mut tile.scores[query * tile.tile_len..][..tile.tile_len];
    let (scores, _) = scores.as_chunks_mut::<8>();
    let none = _mm256_set1_ps(f32::NEG_INFINITY);
    let mut max8 = none;
    for (i, scores) in scores.iter_mut().enumerate() {
        let first = 8 * i;
        let mut s = none;
        if first < seen.end && seen.start < first + 8 {
            s = load(scores);
            if let Some(cap) = tile.softcap {
                s = softcap_lanes(s, cap);
            }
            if first < seen.start || seen.end < first + 8 {
                s = _mm256_blendv_ps(none, s, inside(first, seen));
            }
            max8 = _mm256_max_ps(max8, s);
        }
        store(s, scores);
    }
    let mut lanes = [0.0; 8];
    store(max8, &mut lanes);
    let max = lanes.into_iter().fold(tile.max[query], f32::max);
    if max == f32::NEG_INFINITY {
        // Nothing but minus infinity so far: weights of zero change nothing.
        scores.as_flattened_mut().fill(0.0);
        return 1.0;
    }
    let max8 = _mm256_set1_ps(max);
    let mut sum8 = _mm256_setzero_ps();
    for scores in scores {
        let weights = exp(_mm256_sub_ps(load(scores), max8));
        sum8 = _mm256_add_ps(sum8, weights);
        store(weights, scores);
    }
    let correction = crate::math::exp(tile.max[query] - max);
    tile.max[query] = max;
    tile.sum[query] = tile.sum[query] * correction + sum(sum8);
    correction
}

/// A mask of the keys `first..first + 8` that are in a range.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn inside(first: usize, seen: &Range<usize>) -> __m256 {
    let key = _mm256_add_ps(
        _mm256_set1_ps(first as f32 + 0.5),
        _mm256_setr_ps(0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0),
    );
    let after_start = _mm256_cmp_ps::<_CMP_GT_OQ>(key, _mm256_set1_ps(seen.start as f32));
    let before_end = _mm256_cmp_ps::<_CMP_GT_OQ>(_mm256_set1_ps(seen.end as f32), key);
    _mm256_and_ps(after_start, before_end)
}

/// Adds the weighted values that `R` queries see, all the same, to their sums.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn accumulate<const R: usize>(tile: &mut Tile<'_>, query: usize, corrections: [f32; R]) {
    let n = tile.head_len / 8;
    let whole = n / 4 * 4;
    for d in (0..whole).step_by(4) {
        accumulate_columns::<R, 4>(tile, query, corrections, d);
    }
    for d in whole..n {
        accumulate_columns::<R, 1>(tile, query, corrections, d);
    }
}

/// As [`accumulate`], for `C` vectors of columns from vector `d`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn accumulate_columns<const R: usize, const C: usize>(
    tile: &mut Tile<'_>,
    query: usize,
    corrections: [f32; R],
    d: usize,
) {
    let (head_len, tile_len) = (tile.head_len, tile.tile_len);
    let mut acc = [[_mm256_setzero_ps(); C]; R];
    for r in 0..R {
        let old = &tile.acc[(query + r) * head_len + 8 * d..][..8 * C];
        for (acc, old) in acc[r].iter_mut().zip(old.as_chunks::<8>().0) {
            *acc = _mm256_mul_ps(load(old), _mm256_set1_ps(corrections[r]));
        }
    }
    let weights: [&[f32]; R] =
        std::array::from_fn(|r| &tile.scores[(query + r) * tile_len..][..tile_len]);
    for key in tile.seen[query].clone() {
        let v = &tile.v[key * head_len + 8 * d..][..8 * C];
        let v = v.as_chunks::<8>().0;
        for r in 0..R {
            let weight = _mm256_set1_ps(weights[r][key]);
            for c in 0..C {
                acc[r][c] = _mm256_fmadd_ps(weight, load(&v[c]), acc[r][c]);
            }
        }
    }
    for r in 0..R {
        let out = &mut tile.acc[(query + r) * head_len + 8 * d..][..8 * C];
        for (out, acc) in out.as_chunks_mut::<8>().0.iter_mut().zip(acc[r]) {
            store(acc, out);
        }
    }
}
