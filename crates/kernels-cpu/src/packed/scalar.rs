//! The kernels in plain Rust, on any processor.

use super::format::{Format, PAIRS_BYTES};
use super::panel::{GroupScales, PanelGroup};
use super::{GROUP_LEN, GroupSums, PACKED_ROWS};
use crate::quantize::QuantizedRow;

/// See [`super::dot_groups`].
pub(super) fn dot_groups<F: Format>(groups: &[&[u8]], x: QuantizedRow<'_>, out: &mut [GroupSums]) {
    for (group, sums) in groups.iter().zip(out) {
        *sums = [0.0; PACKED_ROWS];
        let blocks = group.chunks_exact(PACKED_ROWS * F::BYTES);
        for (b, block) in blocks.enumerate() {
            for g in 0..F::LEN / GROUP_LEN {
                let panel = expand_group::<F>(block, g);
                add_group::<F>(&panel, &x, b * (F::LEN / GROUP_LEN) + g, sums);
            }
        }
    }
}

/// See [`super::expand`].
pub(super) fn expand<F: Format>(bytes: &[u8], panel: &mut [PanelGroup]) {
    let blocks = bytes.chunks_exact(PACKED_ROWS * F::BYTES);
    for (block, panel) in blocks.zip(panel.chunks_exact_mut(F::LEN / GROUP_LEN)) {
        for (g, panel) in panel.iter_mut().enumerate() {
            *panel = expand_group::<F>(block, g);
        }
    }
}

/// See [`super::multiply_panel`].
pub(super) fn multiply_panel<F: Format>(
    panel: &[PanelGroup],
    x: &[QuantizedRow<'_>],
    sums: &mut [GroupSums],
) {
    for (x, sums) in x.iter().zip(sums) {
        for (g, panel) in panel.iter().enumerate() {
            add_group::<F>(panel, x, g, sums);
        }
    }
}

/// 32 columns of a packed block.
fn expand_group<F: Format>(block: &[u8], group: usize) -> PanelGroup {
    let (quants, scales) = block.split_at(F::SCALES_AT);
    let planes = &quants[group * F::PLANES.n_bytes()..][..F::PLANES.n_bytes()];
    let word = |q: usize| {
        std::array::from_fn(|row| std::array::from_fn(|j| quant::<F>(planes, q, 4 * row + j)))
    };
    PanelGroup { quants: std::array::from_fn(word), scales: F::scales(scales, group) }
}

/// The quant of word `q` at byte `at` of the words of all rows.
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
        debug_assert!(LINE * 2 == PAIRS_BYTES, "two lines of pairs");
        value |= (planes[p.pairs_at() + q / 4 * LINE + at] >> (q % 4 * 2) & 3) << shift;
    }
    if let Some(shift) = p.singles {
        value |= (planes[p.singles_at() + at] >> q & 1) << shift;
    }
    value
}

/// Adds the products of 32 columns, group `g` of the row.
fn add_group<F: Format>(panel: &PanelGroup, x: &QuantizedRow<'_>, g: usize, sums: &mut GroupSums) {
    let GroupScales { scale, mins, factors } = &panel.scales;
    let quants = &x.quants[g * GROUP_LEN..][..GROUP_LEN];
    for (row, sum) in sums.iter_mut().enumerate() {
        let mut halves = [0_i32; 2];
        for (i, &x) in quants.iter().enumerate() {
            let byte = panel.quants[i / 4][row][i % 4];
            let w = if F::PLANES.bytes { i32::from(byte.cast_signed()) } else { i32::from(byte) };
            halves[i / 16] += w * i32::from(x);
        }
        let isum = match F::HALVES {
            1 => halves[0] + halves[1],
            _ => {
                i32::from(factors[0][row][0]) * halves[0]
                    + i32::from(factors[1][row][0]) * halves[1]
            }
        };
        *sum = (scale[row] * x.scales[g]).mul_add(isum as f32, *sum);
        if F::HAS_MIN {
            if F::HALVES == 1 {
                *sum = mins[0][row].mul_add(x.block_sums[g], *sum);
            } else {
                *sum = mins[0][row].mul_add(x.half_sums[2 * g], *sum);
                *sum = mins[1][row].mul_add(x.half_sums[2 * g + 1], *sum);
            }
        }
    }
}
