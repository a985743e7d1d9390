//! The product of many F32 rows with weights of any type, widened to F32.
//!
//! A task takes a panel of weight rows, widens a stretch of its columns to scratch memory that stays in
//! the L2 cache, and multiplies it with all activation rows; the sums of 4 activation rows and 3 weight
//! rows are in registers. An element is the sum over stretches of `STRETCH` columns, in order; within a
//! stretch 8 lanes are added in a fixed order.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use realizar_quant::BlockType;

use super::{Epilogue, MatrixRef, check_shapes, for_each_segment};
#[cfg(target_arch = "x86_64")]
use crate::lanes;
use crate::vec_dot::widen;
use crate::{PerThread, Rows, RowsMut, Team, Tier};

/// Weight rows per panel.
pub(super) const PANEL_ROWS: usize = 48;
/// Columns that are widened at a time; whole blocks of every type.
pub(super) const STRETCH: usize = 512;
/// Number of weight rows, and of activation rows, whose sums stay in registers.
const TILE_ROWS: usize = 3;
#[cfg(target_arch = "x86_64")]
const TILE_TOKENS: usize = 4;

/// Scratch memory of [`matmul_f32`]: per thread 96 KiB for widened weights.
#[derive(Debug)]
pub struct PanelScratch(pub(super) PerThread<Vec<f32>>);

impl PanelScratch {
    /// Allocates for the threads of a team.
    pub fn new(team: &Team) -> Self {
        Self(PerThread::new(team.n_threads(), |_| vec![0.0; PANEL_ROWS * STRETCH]))
    }
}

/// Computes `out[r] = x[r] · parts + epilogue` in F32, with the outputs of several matrices side by side
/// in the columns of `out`.
///
/// # Panics
/// If the shapes do not match, or `scratch` was allocated for a smaller team.
pub fn matmul_f32(
    team: &Team,
    tier: Tier,
    parts: &[MatrixRef<'_>],
    x: Rows<'_>,      // [n_tokens, n_cols]
    out: RowsMut<'_>, // [n_tokens, sum of the parts' rows]
    scratch: &PanelScratch,
    epilogue: &Epilogue<'_>,
) {
    let (n_tokens, n_cols) = (x.n_rows(), x.n_cols());
    let n = check_shapes(parts, n_tokens, n_cols, &out, epilogue);
    assert!(team.n_threads() <= scratch.0.len(), "scratch for {} threads", scratch.0.len());
    // Narrow outputs are cut finer, so that every thread has a few panels.
    let per_task = n.div_ceil(team.n_threads() * 4).next_multiple_of(TILE_ROWS);
    let grain = per_task.clamp(TILE_ROWS, PANEL_ROWS);
    team.for_each_tile_mut(out, n_tokens.max(1), grain, |mut tile, _row, col, thread| {
        for r in 0..n_tokens {
            for (i, v) in tile.row_mut(r).iter_mut().enumerate() {
                *v = epilogue.at(r, col + i);
            }
        }
        let mut scratch = scratch.0.get(thread);
        for k in (0..n_cols).step_by(STRETCH) {
            let len = STRETCH.min(n_cols - k);
            let end = col + tile.n_cols();
            let x = x.slice_cols(k..k + len);
            let mut panel = [&[] as &[f32]; PANEL_ROWS];
            let mut free = scratch.chunks_exact_mut(STRETCH);
            for_each_segment(parts, col, end, |part, first, n_rows, at| {
                for i in 0..n_rows {
                    let bytes = stretch_bytes(part, first + i, k, len);
                    panel[at - col + i] = match as_floats(part.ty(), bytes) {
                        Some(floats) => floats,
                        None => {
                            let space = free.next().expect("a panel has PANEL_ROWS rows");
                            widen(part.ty(), tier, bytes, &mut space[..len]);
                            &space[..len]
                        }
                    };
                }
            });
            multiply_panel(tier, &panel[..tile.n_cols()], x, &mut tile);
        }
    });
}

/// The bytes of `len` columns from column `k` of a row.
pub(super) fn stretch_bytes<'a>(
    part: &MatrixRef<'a>,
    row: usize,
    k: usize,
    len: usize,
) -> &'a [u8] {
    let (block_len, block_bytes) = (part.ty().block_len(), part.ty().block_bytes());
    &part.row(row)[k / block_len * block_bytes..][..len / block_len * block_bytes]
}

/// The bytes as F32 without a copy, if they are F32 in native byte order and aligned.
pub(super) fn as_floats(ty: BlockType, bytes: &[u8]) -> Option<&[f32]> {
    let native = ty == BlockType::F32 && cfg!(target_endian = "little");
    if native { bytemuck::try_cast_slice(bytes).ok() } else { None }
}

/// Adds the products of a stretch of weight rows and activation rows to `out`.
pub(super) fn multiply_panel(
    tier: Tier,
    panel: &[&[f32]],      // [n][len]
    x: Rows<'_>,           // [n_tokens, len]
    out: &mut RowsMut<'_>, // [n_tokens, n]
) {
    match tier.avx2() {
        None => {
            for token in 0..x.n_rows() {
                for (out, w) in out.row_mut(token).iter_mut().zip(panel) {
                    *out += dot(w, x.row(token));
                }
            }
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token of this tier exists only if its instructions were detected.
        Some(_) => unsafe { multiply_panel_avx2(panel, x, out) },
    }
}

/// The dot product: a sum of 8 lanes, plus the products past the last multiple of 8.
fn dot(w: &[f32], x: &[f32]) -> f32 {
    let ((w, w_tail), (x, x_tail)) = (w.as_chunks::<8>(), x.as_chunks::<8>());
    let mut lanes = [0.0; 8];
    for (w, x) in w.iter().zip(x) {
        for i in 0..8 {
            lanes[i] += w[i] * x[i];
        }
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    let sum = ((a + e) + (c + g)) + ((b + f) + (d + h));
    w_tail.iter().zip(x_tail).fold(sum, |sum, (w, x)| sum + w * x)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn multiply_panel_avx2(panel: &[&[f32]], x: Rows<'_>, out: &mut RowsMut<'_>) {
    let mut token = 0;
    while token < x.n_rows() {
        let row = |i: usize| x.row(token + i);
        token += match x.n_rows() - token {
            0 => 0,
            1 => multiply_tokens([row(0)], panel, out, token),
            2 => multiply_tokens([row(0), row(1)], panel, out, token),
            3 => multiply_tokens([row(0), row(1), row(2)], panel, out, token),
            _ => {
                multiply_tokens::<TILE_TOKENS>([row(0), row(1), row(2), row(3)], panel, out, token)
            }
        };
    }
}

/// Multiplies all weight rows of the panel with `M` activation rows; returns `M`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn multiply_tokens<const M: usize>(
    x: [&[f32]; M],
    panel: &[&[f32]],
    out: &mut RowsMut<'_>,
    token: usize,
) -> usize {
    let (triples, rest) = panel.as_chunks::<TILE_ROWS>();
    for (i, &w) in triples.iter().enumerate() {
        add_tile(&multiply_tile(w, x), out, token, i * TILE_ROWS);
    }
    let col = triples.len() * TILE_ROWS;
    match *rest {
        [a] => add_tile(&multiply_tile([a], x), out, token, col),
        [a, b] => add_tile(&multiply_tile([a, b], x), out, token, col),
        _ => {}
    }
    M
}

/// Adds a tile of products to `out`.
#[cfg(target_arch = "x86_64")]
#[inline]
fn add_tile<const N: usize, const M: usize>(
    sums: &[[f32; N]; M],
    out: &mut RowsMut<'_>,
    token: usize,
    col: usize,
) {
    for (i, sums) in sums.iter().enumerate() {
        for (out, sum) in out.row_mut(token + i)[col..col + N].iter_mut().zip(sums) {
            *out += sum;
        }
    }
}

/// The first `len` values of each row, as chunks of eight and a remainder. A function of its own,
/// because closures in array combinators do not inherit the kernels' target features.
#[cfg(target_arch = "x86_64")]
#[inline]
fn chunks<const N: usize>(rows: [&[f32]; N], len: usize) -> ([&[[f32; 8]]; N], [&[f32]; N]) {
    let n_chunks = len / 8;
    let rows = rows.map(|row| row[..len].as_chunks::<8>());
    (rows.map(|(chunks, _)| &chunks[..n_chunks]), rows.map(|(_, tail)| tail))
}

/// The products of `N` weight rows and `M` activation rows. The lanes of a product do not depend on `N`
/// and `M`.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn multiply_tile<const N: usize, const M: usize>(w: [&[f32]; N], x: [&[f32]; M]) -> [[f32; N]; M] {
    let len = w[0].len();
    let n_chunks = len / 8;
    let ((w8, w_tail), (x8, x_tail)) = (chunks(w, len), chunks(x, len));
    let mut acc = [[_mm256_setzero_ps(); N]; M];
    for k in 0..n_chunks {
        let mut w = [_mm256_setzero_ps(); N];
        for n in 0..N {
            w[n] = lanes::load(&w8[n][k]);
        }
        for m in 0..M {
            let x = lanes::load(&x8[m][k]);
            for n in 0..N {
                acc[m][n] = _mm256_fmadd_ps(w[n], x, acc[m][n]);
            }
        }
    }
    let mut sums = [[0.0; N]; M];
    for m in 0..M {
        for n in 0..N {
            sums[m][n] = lanes::sum(acc[m][n]);
            for (w, x) in w_tail[n].iter().zip(x_tail[m]) {
                sums[m][n] = w.mul_add(*x, sums[m][n]);
            }
        }
    }
    sums
}
