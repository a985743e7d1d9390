//! Rotary position embedding (arXiv:2104.09864): the table of cosines and sines
//! for the rows of a batch, and the rotation of heads in place.

use crate::elementwise::row_grain;
use crate::{RopeStyle, Rows, RowsMut, Team, Tier};

/// The positions that angles are computed from.
#[derive(Clone, Copy, Debug)]
pub enum RopePositions<'a> {
    /// One position per row.
    OfRows(&'a [u32]), // [n_rows]
    /// Three positions per row, and for each pair the index of the one that it takes: the first one if the
    /// list is empty.
    Components(&'a [[u32; 3]], &'a [u8]), // [n_rows], [rotary_dim / 2] or empty
}

impl RopePositions<'_> {
    fn n_rows(&self) -> usize {
        match self {
            Self::OfRows(positions) => positions.len(),
            Self::Components(positions, _) => positions.len(),
        }
    }
}

/// Fills row `i` of `out` with the cosines and then the sines of the angles
/// `positions[i] * inv_freq[j]`, times `mscale`.
///
/// Angles are products in f32, as `transformers` computes them; their cosines
/// and sines are rounded from f64, so they are right for large angles too.
///
/// # Panics
/// If the shapes disagree, or a pair's component is not below 3.
pub fn rope_table(
    team: &Team,
    inv_freq: &[f32], // [rotary_dim / 2]
    mscale: f32,
    positions: RopePositions<'_>,
    out: RowsMut<'_>, // [n_rows, rotary_dim]
) {
    let half = inv_freq.len();
    assert_eq!((positions.n_rows(), 2 * half), (out.n_rows(), out.n_cols()), "shape of the table");
    if let RopePositions::Components(_, of_pair) = positions {
        let fits = of_pair.is_empty() || of_pair.len() == half && of_pair.iter().all(|&c| c < 3);
        assert!(fits, "components of {half} pairs: {of_pair:?}");
    }
    // One sine costs about as much as sixteen elements of a simple kernel.
    let grain = row_grain(16 * out.n_cols());
    team.for_each_row_mut(out, grain, |i, row, _thread| {
        let (cos, sin) = row.split_at_mut(half);
        let pairs = inv_freq.iter().zip(cos).zip(sin);
        match positions {
            RopePositions::OfRows(positions) => {
                pairs.for_each(|((&f, cos), sin)| turn(positions[i], f, mscale, cos, sin));
            }
            RopePositions::Components(positions, of_pair) => {
                for (j, ((&f, cos), sin)) in pairs.enumerate() {
                    let component = of_pair.get(j).copied().unwrap_or(0);
                    turn(positions[i][usize::from(component)], f, mscale, cos, sin);
                }
            }
        }
    });
}

#[inline]
fn turn(position: u32, f: f32, mscale: f32, cos: &mut f32, sin: &mut f32) {
    let angle = f64::from(position as f32 * f);
    *cos = angle.cos() as f32 * mscale;
    *sin = angle.sin() as f32 * mscale;
}

/// Rotates the first `rotary_dim` elements of each head of each row.
///
/// # Panics
/// If the shapes disagree, or the table is wider than a head or of odd width.
pub fn rope(
    team: &Team,
    tier: Tier,
    x: RowsMut<'_>, // [n_rows, n_heads * head_dim]
    n_heads: usize,
    head_dim: usize,
    table: Rows<'_>, // [n_rows, rotary_dim] from `rope_table`
    style: RopeStyle,
) {
    let rotary_dim = table.n_cols();
    assert_eq!(x.n_cols(), n_heads * head_dim, "columns to rotate");
    assert_eq!(x.n_rows(), table.n_rows(), "rows of the table");
    let fits = rotary_dim <= head_dim && rotary_dim.is_multiple_of(2);
    assert!(fits, "{rotary_dim} rotary elements of a head of {head_dim}");
    if rotary_dim == 0 {
        return;
    }
    let grain = row_grain(x.n_cols());
    team.for_each_row_mut(x, grain, |i, row, _thread| {
        let (cos, sin) = table.row(i).split_at(rotary_dim / 2);
        for head in row.chunks_exact_mut(head_dim) {
            rotate(tier, &mut head[..rotary_dim], cos, sin, style);
        }
    });
}

/// Rotates one head.
fn rotate(tier: Tier, x: &mut [f32], cos: &[f32], sin: &[f32], style: RopeStyle) {
    match (tier.avx2(), style) {
        (None, RopeStyle::Neox) => {
            let (a, b) = x.split_at_mut(cos.len());
            for (((a, b), cos), sin) in a.iter_mut().zip(b).zip(cos).zip(sin) {
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
        (None, RopeStyle::Interleaved) => {
            for (([a, b], cos), sin) in x.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that AVX2, FMA and F16C were detected.
        (Some(_), RopeStyle::Neox) => unsafe { avx2::neox(x, cos, sin) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that AVX2, FMA and F16C were detected.
        (Some(_), RopeStyle::Interleaved) => unsafe { avx2::interleaved(x, cos, sin) },
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256, _mm256_fmadd_ps, _mm256_fmaddsub_ps, _mm256_fmsub_ps, _mm256_mul_ps,
        _mm256_permute_ps, _mm256_permute2f128_ps, _mm256_unpackhi_ps, _mm256_unpacklo_ps,
    };

    use crate::lanes::{load, load_partial, store, store_partial};

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn rotate(a: __m256, b: __m256, cos: __m256, sin: __m256) -> (__m256, __m256) {
        let x = _mm256_fmsub_ps(a, cos, _mm256_mul_ps(b, sin));
        let y = _mm256_fmadd_ps(b, cos, _mm256_mul_ps(a, sin));
        (x, y)
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn neox(x: &mut [f32], cos: &[f32], sin: &[f32]) {
        let (a, b) = x.split_at_mut(cos.len());
        let (a8, a) = a.as_chunks_mut::<8>();
        let (b8, b) = b.as_chunks_mut::<8>();
        let (cos8, cos) = cos.as_chunks::<8>();
        let (sin8, sin) = sin.as_chunks::<8>();
        for (((a, b), cos), sin) in a8.iter_mut().zip(b8).zip(cos8).zip(sin8) {
            let (x, y) = rotate(load(a), load(b), load(cos), load(sin));
            store(x, a);
            store(y, b);
        }
        if !a.is_empty() {
            let (cos, sin) = (load_partial(cos), load_partial(sin));
            let (x, y) = rotate(load_partial(a), load_partial(b), cos, sin);
            store_partial(x, a);
            store_partial(y, b);
        }
    }

    /// The first four values, each twice, and the last four values, each twice.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn twice(v: __m256) -> [__m256; 2] {
        let (low, high) = (_mm256_unpacklo_ps(v, v), _mm256_unpackhi_ps(v, v));
        [_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high)]
    }

    /// Rotates four pairs.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn rotate_pairs(x: __m256, cos: __m256, sin: __m256) -> __m256 {
        // Even elements subtract their neighbor's product, odd elements add it.
        let swapped = _mm256_permute_ps::<0b10_11_00_01>(x);
        _mm256_fmaddsub_ps(x, cos, _mm256_mul_ps(swapped, sin))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn rotate16(x: &mut [f32; 16], cos: __m256, sin: __m256) {
        let x = x.as_chunks_mut::<8>().0;
        for ((x, cos), sin) in x.iter_mut().zip(twice(cos)).zip(twice(sin)) {
            store(rotate_pairs(load(x), cos, sin), x);
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn interleaved(x: &mut [f32], cos: &[f32], sin: &[f32]) {
        let (x16, x) = x.as_chunks_mut::<16>();
        let (cos8, cos) = cos.as_chunks::<8>();
        let (sin8, sin) = sin.as_chunks::<8>();
        for ((x, cos), sin) in x16.iter_mut().zip(cos8).zip(sin8) {
            rotate16(x, load(cos), load(sin));
        }
        if !x.is_empty() {
            let mut padded = [0.0; 16];
            padded[..x.len()].copy_from_slice(x);
            rotate16(&mut padded, load_partial(cos), load_partial(sin));
            let n = x.len();
            x.copy_from_slice(&padded[..n]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_holds_accurate_cosines_and_sines() {
        let inv_freq: Vec<f32> = (0..32).map(|i| 10_000_f32.powf(-i as f32 / 32.0)).collect();
        let positions = [0, 1, 511, 131_071, 16_000_000];
        let mut table = vec![0.0; positions.len() * 64];
        let out = RowsMut::new(&mut table, positions.len(), 64);
        rope_table(&Team::new(2), &inv_freq, 1.5, RopePositions::OfRows(&positions), out);
        for (row, &pos) in table.chunks(64).zip(&positions) {
            for (j, &f) in inv_freq.iter().enumerate() {
                let angle = f64::from(pos as f32 * f);
                assert!((f64::from(row[j]) - 1.5 * angle.cos()).abs() < 2e-7, "cos {pos} {j}");
                assert!((f64::from(row[32 + j]) - 1.5 * angle.sin()).abs() < 2e-7, "sin {pos} {j}");
            }
        }
    }

    #[test]
    fn pairs_take_the_component_that_is_theirs() {
        let inv_freq = [1.0, 0.5, 0.25, 0.125];
        let table = |positions: RopePositions<'_>, n_rows: usize| {
            let mut table = vec![0.0; n_rows * 8];
            let out = RowsMut::new(&mut table, n_rows, 8);
            rope_table(&Team::new(2), &inv_freq, 1.5, positions, out);
            table
        };
        let own = [[7, 8, 90], [4, 4, 4]];
        let found = table(RopePositions::Components(&own, &[0, 2, 1, 1]), 2);
        // Each pair has the bits of a table of its position alone.
        for (row, components) in found.chunks(8).zip(own) {
            for (j, component) in [0, 2, 1, 1].into_iter().enumerate() {
                let plain = table(RopePositions::OfRows(&[components[component]]), 1);
                assert_eq!([row[j], row[4 + j]], [plain[j], plain[4 + j]], "pair {j}");
            }
        }
        let first = table(RopePositions::Components(&own, &[]), 2);
        assert_eq!(first, table(RopePositions::OfRows(&[7, 4]), 2));
    }

    /// The rotation by its definition as a product of complex numbers, in f64.
    fn expected(x: &[f32], table: &[f32], head_dim: usize, style: RopeStyle) -> Vec<f64> {
        let half = table.len() / 2;
        let mut out: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        for head in out.chunks_mut(head_dim) {
            let input = head.to_vec();
            for i in 0..half {
                let (j, k) = match style {
                    RopeStyle::Neox => (i, i + half),
                    RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                };
                let (cos, sin) = (f64::from(table[i]), f64::from(table[half + i]));
                head[j] = input[j] * cos - input[k] * sin;
                head[k] = input[j] * sin + input[k] * cos;
            }
        }
        out
    }

    #[test]
    fn rotations_match_f64_for_whole_and_partial_heads() {
        for tier in Tier::available() {
            for style in [RopeStyle::Neox, RopeStyle::Interleaved] {
                for (n_heads, head_dim, rotary_dim) in
                    [(1, 2, 2), (3, 64, 64), (2, 80, 32), (4, 20, 10), (1, 96, 96), (2, 128, 0)]
                {
                    let (n_rows, n_cols) = (5, n_heads * head_dim);
                    let x: Vec<f32> =
                        (0..n_rows * n_cols).map(|i| ((i * 53) % 97) as f32 / 20.0 - 2.0).collect();
                    let inv_freq: Vec<f32> = (0..rotary_dim / 2).map(|i| 0.9_f32.powi(i)).collect();
                    let positions: Vec<u32> = (0..n_rows as u32).map(|i| 17 * i + 3).collect();
                    let team = Team::new(2);
                    let mut table = vec![0.0; n_rows * rotary_dim as usize];
                    let rotary_dim = rotary_dim as usize;
                    let table_rows = RowsMut::new(&mut table, n_rows, rotary_dim);
                    let positions = RopePositions::OfRows(&positions);
                    rope_table(&team, &inv_freq, 1.0, positions, table_rows);
                    let mut y = x.clone();
                    let table = Rows::new(&table, n_rows, rotary_dim);
                    let y_rows = RowsMut::new(&mut y, n_rows, n_cols);
                    rope(&team, tier, y_rows, n_heads, head_dim, table, style);
                    for i in 0..n_rows {
                        let row = i * n_cols..(i + 1) * n_cols;
                        let e = expected(&x[row.clone()], table.row(i), head_dim, style);
                        for (y, e) in y[row].iter().zip(e) {
                            assert!((f64::from(*y) - e).abs() < 1e-6, "{tier} {style:?} {y} {e}");
                        }
                    }
                }
            }
        }
    }
}
