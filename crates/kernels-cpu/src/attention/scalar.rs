//! The tile kernel of attention in plain Rust.

use super::Tile;
use crate::math;

/// Adds a tile's keys and values to every query.
pub(super) fn run(tile: &mut Tile<'_>) {
    let (head_len, tile_len) = (tile.head_len, tile.tile_len);
    for (query, seen) in tile.seen.iter().enumerate() {
        let q = &tile.q[query * head_len..][..head_len];
        let acc = &mut tile.acc[query * head_len..][..head_len];
        let scores = &mut tile.scores[query * tile_len..][..tile_len];
        let mut max = tile.max[query];
        for key in seen.clone() {
            let k = &tile.k[key * head_len..][..head_len];
            let dot: f32 = q.iter().zip(k).map(|(q, k)| q * k).sum();
            scores[key] = tile.softcap.map_or(dot, |cap| cap * math::tanh(dot / cap));
            max = max.max(scores[key]);
        }
        if max == f32::NEG_INFINITY {
            continue;
        }
        let correction = math::exp(tile.max[query] - max);
        tile.max[query] = max;
        tile.sum[query] *= correction;
        acc.iter_mut().for_each(|acc| *acc *= correction);
        for key in seen.clone() {
            let weight = math::exp(scores[key] - max);
            tile.sum[query] += weight;
            let v = &tile.v[key * head_len..][..head_len];
            acc.iter_mut().zip(v).for_each(|(acc, v)| *acc += weight * v);
        }
    }
}
