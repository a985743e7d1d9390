//! The layout of matrix rows on a device, whose shaders read 32-bit words.
//!
//! - Types whose blocks are not whole words (Q4_0, Q5_0, Q8_0, Q3_K, Q6_K, IQ4_NL, MXFP4, TQ2_0, Q1_0, Q2_0)
//!   are split: a row has its blocks without their scales `d`, then the scales, then zeros up to a whole word.
//! - Blocks of IQ1, IQ2 and IQ3 have a level of three or four bits per element in place of indices of points.
//! - Blocks of TQ1_0 become blocks of TQ2_0.
//! - Rows of floats are padded with zeros to whole groups of 32 columns.
//! - The other types keep their bytes.

use std::ops::Range;

use realizar_quant::BlockType;
use realizar_quant::levels::{self, Levels};

/// Columns that a shader decodes at a time.
pub(crate) const GROUP: usize = 32;

/// The device layout of a row's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// Floats, padded to whole groups.
    Padded,
    /// Unchanged blocks.
    Whole,
    /// Blocks without the scale's `len` bytes at `at`, then the scales.
    Split { at: usize, len: usize },
    /// Blocks of `n_words` words with a scale, factors, and levels of `bits` bits; see `write_levels`.
    Levels { bits: usize, n_words: usize },
    /// Split blocks of TQ2_0.
    Ternary,
}

fn layout(ty: BlockType) -> Option<Layout> {
    match ty {
        BlockType::F32 | BlockType::F16 | BlockType::BF16 => Some(Layout::Padded),
        BlockType::Q4_1
        | BlockType::Q5_1
        | BlockType::Q2_K
        | BlockType::Q4_K
        | BlockType::Q5_K
        | BlockType::IQ4_XS
        | BlockType::NVFP4
        | BlockType::F8_0
        | BlockType::Q4_Z => Some(Layout::Whole),
        BlockType::Q4_0
        | BlockType::Q5_0
        | BlockType::Q8_0
        | BlockType::Q1_0
        | BlockType::Q2_0
        | BlockType::IQ4_NL => Some(Layout::Split { at: 0, len: 2 }),
        BlockType::TQ2_0 => Some(Layout::Split { at: 64, len: 2 }),
        BlockType::TQ1_0 => Some(Layout::Ternary),
        BlockType::IQ1_S
        | BlockType::IQ1_M
        | BlockType::IQ2_XXS
        | BlockType::IQ2_XS
        | BlockType::IQ2_S => Some(Layout::Levels { bits: 3, n_words: 27 }),
        BlockType::IQ3_XXS | BlockType::IQ3_S => Some(Layout::Levels { bits: 4, n_words: 34 }),
        BlockType::MXFP4 => Some(Layout::Split { at: 0, len: 1 }),
        BlockType::Q3_K => Some(Layout::Split { at: 108, len: 2 }),
        BlockType::Q6_K => Some(Layout::Split { at: 208, len: 2 }),
        // Types for activations, and types without decoders.
        _ => None,
    }
}

/// Whether shaders read matrices of this type.
pub(crate) fn is_supported(ty: BlockType) -> bool {
    layout(ty).is_some()
}

fn supported_layout(ty: BlockType) -> Layout {
    layout(ty).unwrap_or_else(|| panic!("a matrix of {ty} on a GPU"))
}

fn file_row_bytes(ty: BlockType, n_cols: usize) -> usize {
    ty.row_bytes(n_cols).unwrap_or_else(|error| panic!("{error}"))
}

/// Bytes of a packed row of `n_cols` columns, a multiple of 4. For a type that
/// [`Matrix::new`](crate::Matrix::new) refuses, the bytes in the file.
///
/// # Panics
/// If `n_cols` is not whole blocks.
pub fn packed_row_bytes(ty: BlockType, n_cols: usize) -> usize {
    let n_bytes = file_row_bytes(ty, n_cols);
    match layout(ty) {
        Some(Layout::Padded) => n_cols.next_multiple_of(GROUP) * ty.block_bytes(),
        Some(Layout::Whole) | None => n_bytes,
        Some(Layout::Split { .. }) => n_bytes.next_multiple_of(4),
        Some(Layout::Levels { n_words, .. }) => n_cols / ty.block_len() * 4 * n_words,
        Some(Layout::Ternary) => packed_row_bytes(BlockType::TQ2_0, n_cols),
    }
}

/// Packs whole rows. It needs no device, so any thread may call it.
///
/// `rows` has the file layout, `[n, ty.row_bytes(n_cols)]` bytes, and `out` has
/// `[n, packed_row_bytes(ty, n_cols)]` bytes.
///
/// # Panics
/// As [`packed_row_bytes`], if the lengths do not match, or if [`Matrix::new`](crate::Matrix::new) refuses
/// the type.
pub fn pack_rows(ty: BlockType, n_cols: usize, rows: &[u8], out: &mut [u8]) {
    let (from, to) = (file_row_bytes(ty, n_cols), packed_row_bytes(ty, n_cols));
    if from == 0 {
        return;
    }
    let n_rows = rows.len() / from;
    assert!(rows.len() == n_rows * from && out.len() == n_rows * to, "rows of {ty} to pack");
    let layout = supported_layout(ty);
    if from == to && matches!(layout, Layout::Padded | Layout::Whole) {
        out.copy_from_slice(rows);
        return;
    }
    for (row, out) in rows.chunks_exact(from).zip(out.chunks_exact_mut(to)) {
        match layout {
            Layout::Padded | Layout::Whole => {
                out[..from].copy_from_slice(row);
                out[from..].fill(0);
            }
            Layout::Split { at, len } => split_row(ty.block_bytes(), at..at + len, row, out),
            Layout::Levels { bits, n_words } => {
                let blocks = row.chunks_exact(ty.block_bytes());
                for (block, out) in blocks.zip(out.chunks_exact_mut(4 * n_words)) {
                    write_levels(bits, &levels_of(ty, block), out);
                }
            }
            Layout::Ternary => {
                let ternary = |block: &[u8]| ternary_block(&levels_of(ty, block));
                let blocks: Vec<u8> =
                    row.chunks_exact(ty.block_bytes()).flat_map(ternary).collect();
                pack_rows(BlockType::TQ2_0, n_cols, &blocks, out);
            }
        }
    }
}

fn levels_of(ty: BlockType, block: &[u8]) -> Levels {
    levels::of_block(ty, block).unwrap_or_else(|| unreachable!("{ty} has levels of its own"))
}

/// Writes a block: a word with the scale, the factors as nibbles, then the levels of each group of 32
/// columns. There is a factor per 16 columns, or per 32 if levels have four bits.
///
/// With three bits, a word has bits 0 and 1 of the first 16 columns, those of column `4 k + l` in bits `2 k`
/// on of byte `l`; the next word has those of the other 16 columns; a third word has bit 2 of all columns,
/// that of column `4 k + l` in bit `k` of byte `l`. With four bits, columns 0 to 15 are in the low nibbles
/// and 16 to 31 in the high ones.
fn write_levels(bits: usize, Levels { d, factors, levels }: &Levels, out: &mut [u8]) {
    out.fill(0);
    out[..2].copy_from_slice(d);
    let per_factor = if bits == 3 { 1 } else { 2 };
    let (head, groups) = out.split_at_mut(4 + 8 / per_factor);
    for (i, factor) in factors.iter().step_by(per_factor).enumerate() {
        head[4 + i / 2] |= factor << (4 * (i % 2));
    }
    for (levels, out) in levels.chunks_exact(GROUP).zip(groups.chunks_exact_mut(4 * bits)) {
        for (i, level) in levels.iter().enumerate() {
            let (k, l) = (i / 4, i % 4);
            if bits == 3 {
                out[4 * (k / 4) + l] |= (level & 3) << (2 * (k % 4));
                out[8 + l] |= (level >> 2) << k;
            } else {
                out[i % 16] |= level << (4 * (i / 16));
            }
        }
    }
}

/// A block of TQ2_0.
fn ternary_block(Levels { d, levels, .. }: &Levels) -> [u8; 66] {
    let mut block = [0; 66];
    for (i, level) in levels.iter().enumerate() {
        // Element `32 k + l` of 128 is in bits `2 k` on of byte `l`.
        block[32 * (i / 128) + i % 32] |= level << (2 * (i % 128 / 32));
    }
    block[64..].copy_from_slice(d);
    block
}

/// Moves the bytes `scale` of all blocks to the row's end.
fn split_row(block_bytes: usize, scale: Range<usize>, row: &[u8], out: &mut [u8]) {
    let (n_blocks, body_bytes) = (row.len() / block_bytes, block_bytes - scale.len());
    let (bodies, scales) = out.split_at_mut(n_blocks * body_bytes);
    let (ds, padding) = scales.split_at_mut(n_blocks * scale.len());
    let places = bodies.chunks_exact_mut(body_bytes).zip(ds.chunks_exact_mut(scale.len()));
    for (block, (body, d)) in row.chunks_exact(block_bytes).zip(places) {
        body[..scale.start].copy_from_slice(&block[..scale.start]);
        d.copy_from_slice(&block[scale.clone()]);
        body[scale.start..].copy_from_slice(&block[scale.end..]);
    }
    padding.fill(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_packed_rows() {
        let sizes = [
            (BlockType::F32, 33, 256),
            (BlockType::F16, 1, 64),
            (BlockType::BF16, 64, 128),
            (BlockType::Q4_0, 96, 56),
            (BlockType::Q4_1, 96, 60),
            (BlockType::Q5_0, 32, 24),
            (BlockType::Q5_1, 32, 24),
            (BlockType::Q8_0, 64, 68),
            (BlockType::Q2_K, 256, 84),
            (BlockType::Q3_K, 256, 112),
            (BlockType::Q4_K, 512, 288),
            (BlockType::Q5_K, 256, 176),
            (BlockType::Q6_K, 768, 632),
            (BlockType::IQ4_NL, 96, 56),
            (BlockType::IQ4_XS, 512, 272),
            (BlockType::MXFP4, 96, 52),
            (BlockType::NVFP4, 192, 108),
            (BlockType::TQ1_0, 256, 68),
            (BlockType::TQ2_0, 512, 132),
            (BlockType::Q1_0, 384, 56),
            (BlockType::Q2_0, 192, 56),
            (BlockType::IQ1_S, 256, 108),
            (BlockType::IQ1_M, 256, 108),
            (BlockType::IQ2_XXS, 256, 108),
            (BlockType::IQ2_XS, 512, 216),
            (BlockType::IQ2_S, 256, 108),
            (BlockType::IQ3_XXS, 256, 136),
            (BlockType::IQ3_S, 512, 272),
            (BlockType::F8_0, 192, 204),
            (BlockType::Q4_Z, 96, 60),
        ];
        for (ty, n_cols, n_bytes) in sizes {
            assert_eq!(packed_row_bytes(ty, n_cols), n_bytes, "{ty}");
        }
        let supported = BlockType::all().filter(|ty| is_supported(*ty));
        assert!(supported.eq(sizes.map(|(ty, ..)| ty)));
        // What is refused is still counted.
        assert_eq!(packed_row_bytes(BlockType::Q8_1, 64), 72);
    }

    #[test]
    fn bytes_of_packed_rows() {
        // Three blocks of Q4_0 a row: scales [b, b + 1], levels b + 2 to b + 17.
        let block = |b: u8| b..b + 18;
        let rows: Vec<u8> = [0, 20, 40, 100, 120, 140].into_iter().flat_map(block).collect();
        let mut out = [0xee; 112];
        pack_rows(BlockType::Q4_0, 96, &rows, &mut out);
        let row = |a: u8| {
            let bodies = [a, a + 20, a + 40].into_iter().flat_map(|b| b + 2..b + 18);
            let ds = [a, a + 1, a + 20, a + 21, a + 40, a + 41, 0, 0];
            bodies.chain(ds).collect::<Vec<u8>>()
        };
        assert_eq!(out[..56], row(0));
        assert_eq!(out[56..], row(100));

        let rows: Vec<u8> = (0..210).map(|i| i as u8).collect();
        let mut out = [0xee; 212];
        pack_rows(BlockType::Q6_K, 256, &rows, &mut out);
        assert_eq!(out[..210], rows);
        assert_eq!(out[210..], [0, 0]);

        let mut out = [0xee; 128];
        pack_rows(BlockType::F16, 3, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], &mut out);
        assert_eq!(out[..7], [1, 2, 3, 4, 5, 6, 0]);
        assert_eq!(out[64..71], [7, 8, 9, 10, 11, 12, 0]);
        assert!(out[70..].iter().all(|b| *b == 0));
    }
}
