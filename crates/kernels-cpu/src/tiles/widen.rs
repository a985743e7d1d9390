//! Float weights as tiles: sixteen rows of a matrix in its file layout. FP8 is converted through F32.
//! `packed::tiles` has the quantized types.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::ops::Range;

use half::{bf16, f16};
use realizar_quant::BlockType;

#[cfg(target_arch = "x86_64")]
use super::rows::pairs_of;
use super::{STEP_LEN, TILE_LEN, Tile, to_bf16};
use crate::vec_dot::widen;
use crate::{MatrixRef, Tier};

/// Writes the tiles of up to sixteen rows of a matrix from row `first` on, one per step of columns from
/// `col` on. Rows and columns past the last ones are zero.
///
/// # Panics
/// If the type is not a float type, or a row or column is out of range.
pub(crate) fn widen_rows<'t>(
    tier: Tier,
    matrix: &MatrixRef<'_>,
    first: usize,
    col: usize,
    out: impl Iterator<Item = &'t mut Tile>,
) {
    let n_rows = TILE_LEN.min(matrix.n_rows() - first);
    if matrix.ty() == BlockType::F8_0 {
        widen_blocks(tier, matrix, first..first + n_rows, col, out);
        return;
    }
    let bytes = matrix.ty().block_bytes();
    for (step, tile) in out.enumerate() {
        let from = col + step * STEP_LEN;
        let n_cols = matrix.n_cols().saturating_sub(from).min(STEP_LEN);
        assert!(n_cols > 0, "columns from {from} on");
        // Rows of 32 values, padded if needed.
        let mut padded = [[0; STEP_LEN * 4]; TILE_LEN];
        let mut rows: [&[u8]; TILE_LEN] = [&[0; STEP_LEN * 4]; TILE_LEN];
        for (i, (row, padded)) in rows.iter_mut().zip(&mut padded).take(n_rows).enumerate() {
            let values = &matrix.row(first + i)[from * bytes..][..n_cols * bytes];
            *row = if n_cols == STEP_LEN {
                values
            } else {
                padded[..values.len()].copy_from_slice(values);
                padded
            };
        }
        match (matrix.ty(), tier.avx512_bf16()) {
            (BlockType::F32, None) => scalar(&rows, tile, |x| to_bf16(f32::from_le_bytes(x))),
            (BlockType::F16, None) => {
                scalar(&rows, tile, |x| to_bf16(f16::from_le_bytes(x).to_f32()));
            }
            (BlockType::BF16, None) => scalar(&rows, tile, |x| bf16::from_le_bytes(x).to_bits()),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the token exists only if the instructions were detected, and rows are
            // at least 32 values.
            (ty, Some(_)) => unsafe { widen_avx512(ty, &rows, tile) },
            (ty, None) => panic!("{ty} weights are not widened from rows"),
        }
    }
}

/// [`widen_rows`] for rows of blocks of 64 values, which are two tiles.
fn widen_blocks<'t>(
    tier: Tier,
    matrix: &MatrixRef<'_>,
    rows: Range<usize>,
    col: usize, // a multiple of 64
    mut out: impl Iterator<Item = &'t mut Tile>,
) {
    const BLOCK_LEN: usize = BlockType::F8_0.block_len();
    let bytes = BlockType::F8_0.block_bytes();
    for block in col / BLOCK_LEN.. {
        let Some(low) = out.next() else { return };
        let mut values = [[[0_u8; STEP_LEN * 4]; TILE_LEN]; BLOCK_LEN / STEP_LEN];
        for (i, row) in rows.clone().enumerate() {
            let mut widened = [0.0; BLOCK_LEN];
            widen(BlockType::F8_0, tier, &matrix.row(row)[block * bytes..][..bytes], &mut widened);
            let steps = widened.as_chunks::<STEP_LEN>().0;
            for (values, step) in values.iter_mut().zip(steps) {
                values[i].copy_from_slice(bytemuck::bytes_of(step));
            }
        }
        let tiles = std::iter::once(low).chain(out.next());
        for (values, tile) in values.iter().zip(tiles) {
            let rows: [&[u8]; TILE_LEN] = std::array::from_fn(|i| &values[i][..]);
            match tier.avx512_bf16() {
                None => scalar(&rows, tile, |x| to_bf16(f32::from_ne_bytes(x))),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the token exists only if the instructions were detected, and rows are
                // 32 values.
                Some(_) => unsafe { widen_avx512(BlockType::F32, &rows, tile) },
            }
        }
    }
}

/// Converts rows of values of `BYTES` bytes to a tile.
fn scalar<const BYTES: usize>(
    rows: &[&[u8]; TILE_LEN],
    tile: &mut Tile,
    to_bf16: impl Fn([u8; BYTES]) -> u16,
) {
    for (n, row) in rows.iter().enumerate() {
        let pairs = row.as_chunks::<BYTES>().0.as_chunks::<2>().0;
        for (words, &[low, high]) in tile.0.iter_mut().zip(pairs) {
            words[n] = u32::from(to_bf16(low)) | u32::from(to_bf16(high)) << 16;
        }
    }
}

/// Vector twin of [`scalar`], for all types.
///
/// # Safety
/// Rows have the bytes of 32 values.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn widen_avx512(ty: BlockType, rows: &[&[u8]; TILE_LEN], tile: &mut Tile) {
    let mut lines = [_mm512_setzero_si512(); TILE_LEN];
    for (line, row) in lines.iter_mut().zip(rows) {
        let at = row.as_ptr();
        // SAFETY: the loads read 32 values.
        *line = unsafe {
            match ty {
                BlockType::F32 => {
                    pairs_of(_mm512_loadu_ps(at.cast()), _mm512_loadu_ps(at.add(64).cast()))
                }
                BlockType::F16 => pairs_of(
                    _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())),
                    _mm512_cvtph_ps(_mm256_loadu_si256(at.add(32).cast())),
                ),
                BlockType::BF16 => _mm512_loadu_si512(at.cast()),
                _ => panic!("{ty} weights are not widened from rows"),
            }
        };
    }
    transpose(&mut lines);
    for (words, line) in tile.0.iter_mut().zip(lines) {
        super::rows::store(line, words);
    }
}

/// Word `j` of vector `i` becomes word `i` of vector `j`.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn transpose(v: &mut [__m512i; TILE_LEN]) {
    // Interleave words of two vectors, then pairs of words, then 128-bit lanes.
    let mut pairs = *v;
    for i in 0..8 {
        pairs[2 * i] = _mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
    }
    let mut fours = pairs;
    for i in 0..4 {
        for (j, [a, b]) in [[0, 2], [1, 3]].into_iter().enumerate() {
            let (a, b) = (pairs[4 * i + a], pairs[4 * i + b]);
            fours[4 * i + 2 * j] = _mm512_unpacklo_epi64(a, b);
            fours[4 * i + 2 * j + 1] = _mm512_unpackhi_epi64(a, b);
        }
    }
    for j in 0..4 {
        let [a, b, c, d] = [fours[j], fours[4 + j], fours[8 + j], fours[12 + j]];
        // Lanes 0 and 2, and lanes 1 and 3, of two groups of four vectors each.
        let (ab_even, ab_odd) =
            (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
        let (cd_even, cd_odd) =
            (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
        v[j] = _mm512_shuffle_i32x4::<0x88>(ab_even, cd_even);
        v[8 + j] = _mm512_shuffle_i32x4::<0xdd>(ab_even, cd_even);
        v[4 + j] = _mm512_shuffle_i32x4::<0x88>(ab_odd, cd_odd);
        v[12 + j] = _mm512_shuffle_i32x4::<0xdd>(ab_odd, cd_odd);
    }
}
