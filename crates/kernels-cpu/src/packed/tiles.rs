//! Packed weights as BF16 tiles.
//!
//! A weight is `fma(scale * factor, quant - offset, min_scale * min)` in F32, without the terms that its
//! format lacks, rounded to BF16. The bits are the same on every tier.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
use super::avx512;
use super::format::Format;
use super::panel::PanelGroup;
use super::{GROUP_LEN, PACKED_ROWS};
use crate::tiles::{STEP_LEN, TILE_LEN, Tile, to_pair};
#[cfg(target_arch = "x86_64")]
use crate::tiles::{interleave, store};

const _: () = assert!(GROUP_LEN == STEP_LEN && PACKED_ROWS == TILE_LEN);

/// Columns that share a factor and a minimum in formats with two per group.
const HALF_LEN: usize = GROUP_LEN / 2;

/// Writes one tile per 32 columns of a run of packed blocks.
pub(super) fn widen<'t, F: Format>(bytes: &[u8], mut out: impl Iterator<Item = &'t mut Tile>) {
    let mut panel = [PanelGroup::ZERO; 8];
    let panel = &mut panel[..F::LEN / GROUP_LEN];
    for block in bytes.chunks_exact(PACKED_ROWS * F::PACKED_BYTES) {
        super::scalar::expand::<F>(block, panel);
        for (group, tile) in panel.iter().zip(&mut out) {
            for row in 0..PACKED_ROWS {
                let value = |col: usize| weight::<F>(group, row, col);
                for (k, words) in tile.0.iter_mut().enumerate() {
                    words[row] = to_pair(value(2 * k), value(2 * k + 1));
                }
            }
        }
    }
}

/// A weight in F32.
fn weight<F: Format>(PanelGroup { quants, scales }: &PanelGroup, row: usize, col: usize) -> f32 {
    let half = col / HALF_LEN;
    let byte = quants[col / 4][row][col % 4];
    let quant =
        if F::PLANES.are_signed() { f32::from(byte.cast_signed()) } else { f32::from(byte) };
    let quant = quant - f32::from(F::OFFSET);
    let mut scale = scales.scale[row];
    if F::FACTORS > 0 {
        scale *= f32::from(scales.factors[half][row][0]);
    }
    if F::FLOAT_FACTORS {
        scale *= scales.mins[half][row];
    }
    if F::MINS == 0 {
        return scale * quant;
    }
    let mut min = scales.min_scale[row];
    if F::FACTORS > 0 {
        min *= scales.mins[half][row];
    }
    scale.mul_add(quant, min)
}

/// Vector twin of [`widen`].
///
/// # Safety
/// The processor has the features; the bytes are whole blocks.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn widen_avx512<'t, F: super::avx512_scales::FormatAvx512>(
    bytes: &[u8],
    mut out: impl Iterator<Item = &'t mut Tile>,
) {
    for block in bytes.chunks_exact(PACKED_ROWS * F::PACKED_BYTES) {
        let scales = block[F::SCALES_AT..].as_ptr();
        for line in 0..block.len().div_ceil(64) {
            crate::vec_dot::simd::prefetch(block.as_ptr().wrapping_add(block.len() + 64 * line));
        }
        // SAFETY: the block's scales follow its planes.
        let [scale, min_scale] = unsafe { avx512::block_scales::<F>(scales) };
        for (g, tile) in (0..F::LEN / GROUP_LEN).zip(&mut out) {
            let planes = block[g * F::PLANES.n_bytes()..].as_ptr();
            // SAFETY: as above.
            let [factors, mins] = unsafe { avx512::factors_and_mins::<F>(scales, g) };
            for half in 0..2 {
                let scale = if F::FACTORS > 0 {
                    _mm512_mul_ps(scale, factors[half])
                } else if F::FLOAT_FACTORS {
                    _mm512_mul_ps(scale, mins[half])
                } else {
                    scale
                };
                let min =
                    if F::FACTORS > 0 { _mm512_mul_ps(min_scale, mins[half]) } else { min_scale };
                for q in 4 * half..4 * half + 4 {
                    // SAFETY: the planes are whole.
                    let word = unsafe { avx512::quants::<F>(planes, q) };
                    let mut values = [_mm512_setzero_ps(); 4];
                    for (i, value) in values.iter_mut().enumerate() {
                        let quant = quant_of::<F>(word, i);
                        *value = if F::MINS == 0 {
                            _mm512_mul_ps(scale, quant)
                        } else {
                            _mm512_fmadd_ps(scale, quant, min)
                        };
                    }
                    let [a, b, c, d] = values;
                    for (i, (a, b)) in [(a, b), (c, d)].into_iter().enumerate() {
                        store(interleave(a, b), &mut tile.0[2 * q + i]);
                    }
                }
            }
        }
    }
}

/// Byte `i` of each word minus the offset, as floats.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn quant_of<F: Format>(word: __m512i, i: usize) -> __m512 {
    let up = _mm_cvtsi32_si128(24 - 8 * i as i32);
    let down = _mm_cvtsi32_si128(24);
    let word = _mm512_sll_epi32(word, up);
    let quant = if F::PLANES.are_signed() {
        _mm512_sra_epi32(word, down)
    } else {
        _mm512_srl_epi32(word, down)
    };
    let quant = _mm512_sub_epi32(quant, _mm512_set1_epi32(i32::from(F::OFFSET)));
    _mm512_cvtepi32_ps(quant)
}
