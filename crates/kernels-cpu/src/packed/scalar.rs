//! The kernels in plain Rust, for any processor.

use std::ops::Range;

use super::format::{E4M3_HALF_UNIT, E4M3_SHIFT, Format, half_at, scale_at};
use super::panel::{GroupScales, PanelGroup};
use super::{GROUP_LEN, GroupSums, PACKED_ROWS};
use crate::quantize::{QuantizedRow, QuantizedRows};

/// See [`super::dot_groups`].
pub(super) fn dot_groups<F: Format>(
    groups: &[&[u8]],
    rows: &[QuantizedRow<'_>],
    out: &mut [GroupSums],
) {
    let mut panel = [PanelGroup::ZERO; 8];
    let panel = &mut panel[..F::LEN / GROUP_LEN];
    out.fill([0.0; PACKED_ROWS]);
    for (group, sums) in groups.iter().zip(out.chunks_exact_mut(rows.len())) {
        let blocks = group.chunks_exact(PACKED_ROWS * F::PACKED_BYTES);
        for (b, block) in blocks.enumerate() {
            expand::<F>(block, panel);
            for (x, sums) in rows.iter().zip(&mut *sums) {
                add_block::<F>(panel, &x.slice_cols(b * F::LEN..(b + 1) * F::LEN), sums);
            }
        }
    }
}

/// See [`super::expand`].
pub(super) fn expand<F: Format>(bytes: &[u8], panel: &mut [PanelGroup]) {
    let blocks = bytes.chunks_exact(PACKED_ROWS * F::PACKED_BYTES);
    for (block, panel) in blocks.zip(panel.chunks_exact_mut(F::LEN / GROUP_LEN)) {
        for (g, panel) in panel.iter_mut().enumerate() {
            *panel = expand_group::<F>(block, g);
        }
    }
}

/// See [`super::multiply_panels`].
pub(super) fn multiply_panel<F: Format>(
    panel: &[PanelGroup],
    x: &QuantizedRows,
    first: usize,
    cols: Range<usize>,
    sums: &mut [GroupSums],
) {
    for (i, sums) in (first..).zip(sums) {
        let blocks = panel.chunks_exact(F::LEN / GROUP_LEN);
        for (block, col) in blocks.zip(cols.clone().step_by(F::LEN)) {
            add_block::<F>(block, &x.row(i).slice_cols(col..col + F::LEN), sums);
        }
    }
}

/// Expands 32 columns of a packed block.
fn expand_group<F: Format>(block: &[u8], group: usize) -> PanelGroup {
    let (quants, scales) = block.split_at(F::SCALES_AT);
    let planes = &quants[group * F::PLANES.n_bytes()..][..F::PLANES.n_bytes()];
    let word = |q: usize| {
        std::array::from_fn(|row| std::array::from_fn(|j| quant::<F>(planes, q, 4 * row + j)))
    };
    PanelGroup { quants: std::array::from_fn(word), scales: group_scales::<F>(scales, group) }
}

/// The scales of a group of a packed block.
pub(super) fn group_scales<F: Format>(scales: &[u8], group: usize) -> GroupScales {
    let mut out = GroupScales::ZERO;
    for row in 0..PACKED_ROWS {
        let integers = F::integers(&scales[F::INTEGERS_AT..], group, row);
        out.scale[row] = scale_at::<F>(scales, row);
        out.min_scale[row] = match F::MIN_PER_SCALE {
            _ if F::MINS == 0 => 0.0,
            Some(ratio) => ratio * out.scale[row],
            None if F::HAS_ZEROS => -(out.scale[row] * half_at(scales, 1, row)),
            // Integer minimums are subtracted.
            None if F::FACTORS > 0 => -half_at(scales, 1, row),
            None => half_at(scales, 1, row),
        };
        for half in 0..2 {
            out.mins[half][row] = if F::FLOAT_FACTORS {
                let bits = u32::from(integers.mins[half]) << E4M3_SHIFT;
                f32::from_bits(bits) * E4M3_HALF_UNIT
            } else {
                f32::from(integers.mins[half])
            };
            out.factors[half][row] = [integers.factors[half]; 2];
        }
    }
    out
}

/// The quant at byte `at` of the words `q` of all rows.
fn quant<F: Format>(planes: &[u8], q: usize, at: usize) -> u8 {
    const LINE: usize = 4 * PACKED_ROWS;
    let p = F::PLANES;
    if p.bytes {
        return planes[q * LINE + at];
    }
    let mut value = 0;
    if p.nibbles {
        value = planes[q % 4 * LINE + at] >> (q / 4 * 4) & 15;
    }
    if let Some(shift) = p.pairs {
        value |= (planes[p.pairs_at() + q / 4 * LINE + at] >> (q % 4 * 2) & 3) << shift;
    }
    if let Some(shift) = p.singles {
        value |= (planes[p.singles_at() + at] >> q & 1) << shift;
    }
    p.codebook.map_or(value, |codebook| codebook[usize::from(value)].cast_unsigned())
}

/// Adds the products of a block with the row's columns of that block.
fn add_block<F: Format>(block: &[PanelGroup], x: &QuantizedRow<'_>, sums: &mut GroupSums) {
    let GroupScales { scale, min_scale, .. } = &block[0].scales;
    for (row, sum) in sums.iter_mut().enumerate() {
        let (mut total, mut min_total) = (0.0_f32, 0.0_f32);
        for (g, PanelGroup { quants, scales }) in block.iter().enumerate() {
            for half in 0..2 {
                let mut isum = 0;
                for i in 16 * half..16 * (half + 1) {
                    let byte = quants[i / 4][row][i % 4];
                    let w = if F::PLANES.are_signed() {
                        i32::from(byte.cast_signed())
                    } else {
                        i32::from(byte) - i32::from(F::OFFSET)
                    };
                    isum += w * i32::from(x.quants[g * GROUP_LEN + i]);
                }
                let isum = isum * i32::from(scales.factors[half][row][0]);
                let mut sum = isum as f32;
                if F::FLOAT_FACTORS {
                    sum *= scales.mins[half][row];
                }
                total = x.scales[2 * g + half].mul_add(sum, total);
            }
            let mins = [scales.mins[0][row], scales.mins[1][row]];
            match F::MINS {
                0 => {}
                1 => min_total = mins[0].mul_add(x.block_sums[g], min_total),
                _ => {
                    min_total = mins[0].mul_add(x.half_sums[2 * g], min_total);
                    min_total = mins[1].mul_add(x.half_sums[2 * g + 1], min_total);
                }
            }
        }
        *sum = scale[row].mul_add(total, *sum);
        if F::MINS > 0 {
            *sum = min_scale[row].mul_add(min_total, *sum);
        }
    }
}
