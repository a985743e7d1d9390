//! Embedding lookup: rows of a matrix by id.

use crate::dispatch::shader::{Access, Shader};
use crate::dispatch::{Grid, Kernel, Rows, View};
use crate::storage::matrix::{self, Matrix};
use crate::{Error, Gpu};
use realizar_quant::BlockType;

/// Invocations per workgroup; each decodes 32 columns.
const WORKGROUP: u32 = 64;

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    groups: u32,
    row_words: u32,
    first_row: u32,
    n_rows: u32,
    rows_at: u32,
    ids_at: u32,
    scale: f32,
    width: u32,
    out: [u32; 2], // start, stride
    _pad: [u32; 2],
}

fn shader(ty: BlockType) -> Shader {
    Shader {
        name: format!("embed {ty}").into(),
        parts: vec![include_str!("../../shaders/embed.wgsl"), matrix::decode_part(ty)],
        bindings: &[Access::Read, Access::ReadWrite, Access::Read],
        constants: Vec::new(),
    }
}

pub(crate) fn shaders() -> Vec<Shader> {
    matrix::TYPES.map(shader).into()
}

/// `out[row] = scale * table[batch[ids_at + row]]`, with one kernel per piece of the table. Rows whose id is
/// not in the table are left unchanged.
///
/// # Errors
/// If the device refuses a kernel.
pub fn embed(
    gpu: &Gpu,
    rows: Rows<'_>,
    table: &Matrix,
    ids_at: u32,
    scale: f32,
    out: View, // [table.n_cols]
) -> Result<Vec<Kernel>, Error> {
    assert_eq!(out.width, table.n_cols(), "the width of an embedding");
    let shader = shader(table.ty());
    let grid = Grid { x: table.n_groups().div_ceil(WORKGROUP), rows: 1, z: 1 };
    let bind = |piece: &matrix::Piece| {
        let params = Params {
            groups: table.n_groups(),
            row_words: table.row_words(),
            first_row: piece.first_row,
            n_rows: piece.n_rows,
            rows_at: rows.at.0,
            ids_at,
            scale,
            width: out.width,
            out: [out.start, out.stride],
            _pad: [0; 2],
        };
        gpu.kernel(&shader, &params, &[rows.batch, rows.values, &piece.buffer], grid)
    };
    table.pieces().iter().map(bind).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Bench};

    /// A table of random blocks, half of them of random bytes.
    #[test]
    fn rows_of_every_type_across_pieces() {
        let (n_rows, n_steps) = (9, 12);
        let Some(gpu) = testing::gpu() else { return };
        for ty in matrix::TYPES {
            let n_cols = if ty.block_len() == 1 { 333 } else { ty.block_len() * 3 };
            let data = testing::blocks(ty, n_rows, n_cols, 7);
            let wanted = testing::dequantized(ty, n_cols, &data);
            // Pieces of 4 rows.
            let piece_bytes = 4 * crate::packed_row_bytes(ty, n_cols) as u64;
            let (r, c) = (n_rows as u32, n_cols as u32);
            let table = Matrix::with_piece_bytes(&gpu, "table", ty, r, c, piece_bytes).unwrap();
            table.pack_and_write(&gpu, &data).unwrap();

            // Rows 1 to 13 of the batch have ids; one of them is not in the table.
            let ids: Vec<u32> = (0..n_steps).map(|i| (i * 5 + 3) % 10).collect();
            let batch = [&[1, n_steps, 0, 0][..], &ids].concat();
            let out = View { start: 5, stride: c + 3, width: c };
            let n = out.start + (n_steps + 1) * out.stride;
            let bench = Bench::new(&gpu, &vec![-7.25; n as usize], &batch);
            for scale in [1.0f32, 3.3] {
                let kernels = embed(&gpu, bench.rows(0), &table, 3, scale, out).unwrap();
                assert_eq!(kernels.len(), 3);
                let runs: Vec<_> = kernels.iter().map(|k| (k, n_steps)).collect();
                let found = bench.run(&runs);
                let mut expected = vec![-7.25f32; n as usize];
                for (row, id) in (1..).zip(&ids).filter(|(_, id)| **id < r) {
                    for col in 0..n_cols {
                        let at = (out.start + row * out.stride) as usize + col;
                        expected[at] = scale * wanted[*id as usize * n_cols + col];
                    }
                }
                let same = |(a, b): (&f32, &f32)| a == b;
                let apart = found.iter().zip(&expected).position(|pair| !same(pair));
                assert_eq!(apart.map(|i| (i, found[i], expected[i])), None, "{ty} {scale}");
            }
        }
    }
}
