//! How rows of a matrix lie on a device, where shaders read 32-bit words.
//!
//! Block types whose blocks are not whole words (Q4_0, Q5_0, Q8_0, Q3_K, Q6_K, IQ4_NL, MXFP4)
//! are split: a row is its blocks without their scales `d`, then the scales, then
//! zeros up to a whole word. The other block types keep their bytes. Rows of
//! floats are padded with zeros to whole groups of 32 columns.

use std::ops::Range;

use realizar_quant::BlockType;

/// Columns that a shader decodes at once.
pub(crate) const GROUP: usize = 32;

/// What becomes of the blocks of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// They are floats, padded to whole groups.
    Padded,
    /// They stay as they are.
    Whole,
    /// The bytes of the scale at a place of a block move to the row's end.
    Split { at: usize, len: usize },
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
        | BlockType::F8_0
        | BlockType::Q4_Z => Some(Layout::Whole),
        BlockType::Q4_0 | BlockType::Q5_0 | BlockType::Q8_0 | BlockType::IQ4_NL => {
            Some(Layout::Split { at: 0, len: 2 })
        }
        BlockType::MXFP4 => Some(Layout::Split { at: 0, len: 1 }),
        BlockType::Q3_K => Some(Layout::Split { at: 108, len: 2 }),
        BlockType::Q6_K => Some(Layout::Split { at: 208, len: 2 }),
        // Types of activations, and types without decoders.
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

/// Bytes of a packed row of `n_cols` columns, a multiple of 4. Of a type that
/// [`Matrix::new`](crate::Matrix::new) refuses, those of the file.
///
/// # Panics
/// If `n_cols` are not whole blocks.
pub fn packed_row_bytes(ty: BlockType, n_cols: usize) -> usize {
    let n_bytes = file_row_bytes(ty, n_cols);
    match layout(ty) {
        Some(Layout::Padded) => n_cols.next_multiple_of(GROUP) * ty.block_bytes(),
        Some(Layout::Whole) | None => n_bytes,
        Some(Layout::Split { .. }) => n_bytes.next_multiple_of(4),
    }
}

/// Packs whole rows. It needs no device, so any thread may call it.
///
/// `rows` is as files have it, `[n, ty.row_bytes(n_cols)]` bytes, and `out` is
/// `[n, packed_row_bytes(ty, n_cols)]` bytes.
///
/// # Panics
/// If the lengths do not fit together, as [`packed_row_bytes`], or if
/// [`Matrix::new`](crate::Matrix::new) refuses the type.
pub fn pack_rows(ty: BlockType, n_cols: usize, rows: &[u8], out: &mut [u8]) {
    let (from, to) = (file_row_bytes(ty, n_cols), packed_row_bytes(ty, n_cols));
    if from == 0 {
        return;
    }
    let n_rows = rows.len() / from;
    assert!(rows.len() == n_rows * from && out.len() == n_rows * to, "rows of {ty} to pack");
    let layout = supported_layout(ty);
    if from == to && !matches!(layout, Layout::Split { .. }) {
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
        }
    }
}

/// Moves the bytes `scale` of each block behind the rest of all blocks.
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
            (BlockType::F8_0, 192, 204),
            (BlockType::Q4_Z, 96, 60),
        ];
        for (ty, n_cols, n_bytes) in sizes {
            assert_eq!(packed_row_bytes(ty, n_cols), n_bytes, "{ty}");
        }
        let supported = BlockType::all().filter(|ty| is_supported(*ty));
        assert!(supported.eq(sizes.map(|(ty, ..)| ty)));
        // What is refused is still counted.
        assert_eq!(packed_row_bytes(BlockType::IQ3_S, 256), 110);
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
