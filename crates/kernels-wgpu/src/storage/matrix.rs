//! Weight matrices on a device: packed rows in one buffer, or in several if they exceed the largest binding.

use crate::storage::pack::{self, pack_rows, packed_row_bytes};
use crate::{Buffer, Error, Gpu};
use realizar_quant::BlockType;

/// Bytes that are staged for the device at a time.
const STAGING_BYTES: usize = 16 << 20;

/// A matrix of whole rows, `[n_rows, n_cols]`, of one block type.
///
/// Each of its pieces has a kernel of its own. [`pack_rows`] has the layout of a row.
#[derive(Debug, Clone)]
pub struct Matrix {
    what: String,
    ty: BlockType,
    n_rows: u32,
    n_cols: u32,
    rows_per_piece: u32,
    pieces: Vec<Piece>,
}

/// Rows of a matrix in one buffer.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub(crate) first_row: u32,
    pub(crate) n_rows: u32,
    pub(crate) buffer: Buffer,
}

/// The number of rows per buffer, and the bytes of a row.
fn rows_per_piece(
    gpu: &Gpu,
    what: &str,
    ty: BlockType,
    n_cols: u32,
    piece_bytes: u64,
) -> Result<(u32, u64), Error> {
    if !pack::is_supported(ty) {
        return Err(Error::Unsupported(format!("matrices of type {ty} ({what})")));
    }
    if ty.row_bytes(n_cols as usize).is_err() {
        return Err(Error::Unsupported(format!("rows of {n_cols} elements of {ty} ({what})")));
    }
    let row_bytes = packed_row_bytes(ty, n_cols as usize).max(4) as u64;
    let caps = gpu.caps();
    // Shaders have 32-bit word indices.
    let piece_bytes = piece_bytes.min(u64::from(u32::MAX));
    let available = caps.max_binding_bytes.min(caps.max_buffer_bytes).min(piece_bytes);
    // Some kernels have a workgroup per row.
    let mut rows_per_piece = (available / row_bytes).min(u64::from(caps.max_workgroups));
    if rows_per_piece == 0 {
        let limit = "maxStorageBufferBindingSize";
        let what = format!("a row of {what}");
        return Err(Error::Limit { what, needed: row_bytes, limit, available });
    }
    if rows_per_piece > 64 {
        // All pieces but the last have whole tiles.
        rows_per_piece -= rows_per_piece % 64;
    }
    Ok((rows_per_piece as u32, row_bytes))
}

/// The number of experts per buffer.
fn experts_per_piece(
    gpu: &Gpu,
    what: &str,
    ty: BlockType,
    [n_rows, n_cols]: [u32; 2],
    piece_bytes: u64,
) -> Result<u32, Error> {
    let (_, row_bytes) = rows_per_piece(gpu, what, ty, n_cols, piece_bytes)?;
    let caps = gpu.caps();
    let available = caps.max_binding_bytes.min(caps.max_buffer_bytes);
    let available = available.min(piece_bytes).min(u64::from(u32::MAX));
    let needed = row_bytes * u64::from(n_rows.max(1));
    match u32::try_from(available / needed) {
        Ok(0) => {
            let limit = "maxStorageBufferBindingSize";
            Err(Error::Limit { what: format!("an expert of {what}"), needed, limit, available })
        }
        Ok(n) => Ok(n.min(u32::MAX / n_rows.max(1))),
        Err(_) => Ok(u32::MAX / n_rows.max(1)),
    }
}

impl Matrix {
    /// Creates a matrix of zeroed bytes. Errors name it `what`.
    ///
    /// # Errors
    /// If the kernels do not support the type, `n_cols` is not whole blocks, a row exceeds the largest binding,
    /// or memory runs out.
    pub fn new(
        gpu: &Gpu,
        what: &str,
        ty: BlockType,
        n_rows: u32,
        n_cols: u32,
    ) -> Result<Self, Error> {
        Self::with_piece_bytes(gpu, what, ty, n_rows, n_cols, u64::MAX)
    }

    /// As [`Self::new`], with pieces of at most `piece_bytes`.
    pub(crate) fn with_piece_bytes(
        gpu: &Gpu,
        what: &str,
        ty: BlockType,
        n_rows: u32,
        n_cols: u32,
        piece_bytes: u64,
    ) -> Result<Self, Error> {
        let (rows_per_piece, row_bytes) = rows_per_piece(gpu, what, ty, n_cols, piece_bytes)?;
        let mut pieces = Vec::new();
        let mut first_row = 0;
        while first_row < n_rows {
            let n = rows_per_piece.min(n_rows - first_row);
            let buffer = gpu.buffer(what, u64::from(n) * row_bytes)?;
            pieces.push(Piece { first_row, n_rows: n, buffer });
            first_row += n;
        }
        Ok(Self { what: what.to_owned(), ty, n_rows, n_cols, rows_per_piece, pieces })
    }

    /// Creates the matrices of experts, one below the other: `n_experts * n_rows` rows, in pieces of whole
    /// experts.
    ///
    /// # Errors
    /// As [`Self::new`], or if an expert exceeds the largest binding.
    pub fn experts(
        gpu: &Gpu,
        what: &str,
        ty: BlockType,
        [n_experts, n_rows, n_cols]: [u32; 3],
    ) -> Result<Self, Error> {
        Self::experts_with_piece_bytes(gpu, what, ty, [n_experts, n_rows, n_cols], u64::MAX)
    }

    /// As [`Self::experts`], with pieces of at most `piece_bytes`.
    pub(crate) fn experts_with_piece_bytes(
        gpu: &Gpu,
        what: &str,
        ty: BlockType,
        [n_experts, n_rows, n_cols]: [u32; 3],
        piece_bytes: u64,
    ) -> Result<Self, Error> {
        let per_piece = experts_per_piece(gpu, what, ty, [n_rows, n_cols], piece_bytes)?;
        let row_bytes = packed_row_bytes(ty, n_cols as usize).max(4) as u64;
        let mut pieces = Vec::new();
        for first in (0..n_experts).step_by(per_piece as usize) {
            let n = per_piece.min(n_experts - first) * n_rows;
            let buffer = gpu.buffer(what, u64::from(n) * row_bytes)?;
            pieces.push(Piece { first_row: first * n_rows, n_rows: n, buffer });
        }
        let (what, rows_per_piece) = (what.to_owned(), per_piece * n_rows);
        Ok(Self { what, ty, n_rows: n_experts * n_rows, n_cols, rows_per_piece, pieces })
    }

    /// The number of kernels of an operation on experts: one per piece.
    ///
    /// # Errors
    /// As [`Self::experts`] except for memory.
    pub fn n_expert_kernels(
        gpu: &Gpu,
        what: &str,
        ty: BlockType,
        [n_experts, n_rows, n_cols]: [u32; 3],
    ) -> Result<u32, Error> {
        let per_piece = experts_per_piece(gpu, what, ty, [n_rows, n_cols], u64::MAX)?;
        Ok(n_experts.div_ceil(per_piece))
    }

    /// Checks whether a device supports a matrix, without allocating.
    ///
    /// # Errors
    /// As [`Self::new`] except for memory.
    pub fn check(gpu: &Gpu, what: &str, ty: BlockType, n_cols: u32) -> Result<(), Error> {
        rows_per_piece(gpu, what, ty, n_cols, u64::MAX).map(|_| ())
    }

    /// The number of kernels of an operation on a matrix: one per piece.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn n_kernels(gpu: &Gpu, ty: BlockType, n_rows: u32, n_cols: u32) -> Result<u32, Error> {
        let (rows_per_piece, _) = rows_per_piece(gpu, "a matrix", ty, n_cols, u64::MAX)?;
        Ok(n_rows.div_ceil(rows_per_piece))
    }

    /// Creates a matrix from rows in the file layout, `[n_rows, ty.row_bytes(n_cols)]` bytes, which are packed
    /// and copied a few at a time.
    ///
    /// # Errors
    /// As [`Self::new`], or if `data` has another length.
    pub fn upload(
        gpu: &Gpu,
        what: &str,
        ty: BlockType,
        n_rows: u32,
        n_cols: u32,
        data: &[u8],
    ) -> Result<Self, Error> {
        let matrix = Self::new(gpu, what, ty, n_rows, n_cols)?;
        matrix.pack_and_write(gpu, data)?;
        Ok(matrix)
    }

    /// Packs and writes all rows.
    pub(crate) fn pack_and_write(&self, gpu: &Gpu, data: &[u8]) -> Result<(), Error> {
        let n_cols = self.n_cols as usize;
        let from = data.len() / (self.n_rows as usize).max(1);
        if self.ty.row_bytes(n_cols) != Ok(from) || from * self.n_rows as usize != data.len() {
            return Err(Error::Refused {
                what: format!("the bytes of {}", self.what),
                reason: format!(
                    "{} bytes are not {} rows of {n_cols} elements of {}",
                    data.len(),
                    self.n_rows,
                    self.ty
                ),
            });
        }
        if from == 0 {
            return Ok(());
        }
        let to = self.row_bytes();
        let n_at_once = (STAGING_BYTES / to).max(1);
        let mut packed = vec![0; n_at_once.min(self.n_rows as usize) * to];
        for (rows, first_row) in data.chunks(n_at_once * from).zip((0..).step_by(n_at_once)) {
            let packed = &mut packed[..rows.len() / from * to];
            pack_rows(self.ty, n_cols, rows, packed);
            self.write_rows(gpu, first_row, packed)?;
        }
        Ok(())
    }

    /// Writes rows that [`pack_rows`] has packed, from `first_row` on.
    ///
    /// # Errors
    /// If the device was lost or memory for the copy runs out.
    pub fn write_rows(&self, gpu: &Gpu, first_row: u32, packed: &[u8]) -> Result<(), Error> {
        let row_bytes = self.row_bytes();
        if row_bytes == 0 {
            return Ok(());
        }
        let n = packed.len() / row_bytes;
        let end = first_row as usize + n;
        assert!(n * row_bytes == packed.len() && end <= self.n_rows as usize, "{}", self.what);
        let mut first_row = first_row as usize;
        let mut left = packed;
        while !left.is_empty() {
            let piece = &self.pieces[first_row / self.rows_per_piece as usize];
            let skipped = first_row - piece.first_row as usize;
            let n_rows = (piece.n_rows as usize - skipped)
                .min(left.len() / row_bytes)
                .min((STAGING_BYTES / row_bytes).max(1));
            let (now, later) = left.split_at(n_rows * row_bytes);
            gpu.write(&piece.buffer, (skipped * row_bytes) as u64, now)?;
            // Copies are buffered in the driver's memory until a submission.
            gpu.record().submit()?;
            if now.len() > STAGING_BYTES / 2 {
                gpu.wait()?;
            }
            (first_row, left) = (first_row + n_rows, later);
        }
        Ok(())
    }

    /// The block type.
    pub fn ty(&self) -> BlockType {
        self.ty
    }

    /// Number of rows, which are the outputs of a product.
    pub fn n_rows(&self) -> u32 {
        self.n_rows
    }

    /// Number of columns, which are the inputs of a product.
    pub fn n_cols(&self) -> u32 {
        self.n_cols
    }

    /// Bytes on the device.
    pub fn n_bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.buffer.n_bytes()).sum()
    }

    /// Bytes per packed row.
    pub(crate) fn row_bytes(&self) -> usize {
        packed_row_bytes(self.ty, self.n_cols as usize)
    }

    /// Words per packed row.
    pub(crate) fn row_words(&self) -> u32 {
        (self.row_bytes() / 4) as u32
    }

    /// Groups of 32 columns per row.
    pub(crate) fn n_groups(&self) -> u32 {
        self.n_cols.div_ceil(pack::GROUP as u32)
    }

    /// The pieces, in order of rows.
    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }
}

/// The supported types.
pub(crate) const TYPES: [BlockType; 30] = [
    BlockType::F32,
    BlockType::F16,
    BlockType::BF16,
    BlockType::Q4_0,
    BlockType::Q4_1,
    BlockType::Q5_0,
    BlockType::Q5_1,
    BlockType::Q8_0,
    BlockType::Q2_K,
    BlockType::Q3_K,
    BlockType::Q4_K,
    BlockType::Q5_K,
    BlockType::Q6_K,
    BlockType::IQ4_NL,
    BlockType::IQ4_XS,
    BlockType::MXFP4,
    BlockType::F8_0,
    BlockType::Q4_Z,
    BlockType::IQ1_S,
    BlockType::IQ1_M,
    BlockType::IQ2_XXS,
    BlockType::IQ2_XS,
    BlockType::IQ2_S,
    BlockType::IQ3_XXS,
    BlockType::IQ3_S,
    BlockType::TQ1_0,
    BlockType::TQ2_0,
    BlockType::NVFP4,
    BlockType::Q1_0,
    BlockType::Q2_0,
];

/// The shader part that defines `decode` for a type.
///
/// `decode(row, group)` returns the columns `32 * group..32 * group + 32` of the packed row that begins at
/// word `row` of `weights`, as eight vectors of four. The shader declares `weights: array<u32>` and
/// `params.groups`, the number of groups per row.
pub(crate) fn decode_part(ty: BlockType) -> &'static str {
    match ty {
        BlockType::F32 => include_str!("../../shaders/decode/f32.wgsl"),
        BlockType::F16 => include_str!("../../shaders/decode/f16.wgsl"),
        BlockType::BF16 => include_str!("../../shaders/decode/bf16.wgsl"),
        BlockType::Q4_0 => include_str!("../../shaders/decode/q4_0.wgsl"),
        BlockType::Q4_1 => include_str!("../../shaders/decode/q4_1.wgsl"),
        BlockType::Q5_0 => include_str!("../../shaders/decode/q5_0.wgsl"),
        BlockType::Q5_1 => include_str!("../../shaders/decode/q5_1.wgsl"),
        BlockType::Q8_0 => include_str!("../../shaders/decode/q8_0.wgsl"),
        BlockType::Q2_K => include_str!("../../shaders/decode/q2_k.wgsl"),
        BlockType::Q3_K => include_str!("../../shaders/decode/q3_k.wgsl"),
        BlockType::Q4_K => concat!(
            include_str!("../../shaders/decode/k_scales.wgsl"),
            include_str!("../../shaders/decode/q4_k.wgsl")
        ),
        BlockType::Q5_K => concat!(
            include_str!("../../shaders/decode/k_scales.wgsl"),
            include_str!("../../shaders/decode/q5_k.wgsl")
        ),
        BlockType::Q6_K => include_str!("../../shaders/decode/q6_k.wgsl"),
        BlockType::IQ4_NL => concat!(
            include_str!("../../shaders/decode/codebook.wgsl"),
            include_str!("../../shaders/decode/iq4_nl.wgsl")
        ),
        BlockType::IQ4_XS => concat!(
            include_str!("../../shaders/decode/codebook.wgsl"),
            include_str!("../../shaders/decode/iq4_xs.wgsl")
        ),
        BlockType::MXFP4 => concat!(
            include_str!("../../shaders/decode/codebook.wgsl"),
            include_str!("../../shaders/decode/mxfp4.wgsl")
        ),
        BlockType::F8_0 => include_str!("../../shaders/decode/f8_0.wgsl"),
        BlockType::Q4_Z => include_str!("../../shaders/decode/q4_z.wgsl"),
        BlockType::IQ1_S | BlockType::IQ1_M => concat!(
            include_str!("../../shaders/decode/codebook.wgsl"),
            include_str!("../../shaders/decode/iq1.wgsl"),
            include_str!("../../shaders/decode/three_bits.wgsl")
        ),
        BlockType::IQ2_XXS | BlockType::IQ2_XS | BlockType::IQ2_S => concat!(
            include_str!("../../shaders/decode/codebook.wgsl"),
            include_str!("../../shaders/decode/iq2.wgsl"),
            include_str!("../../shaders/decode/three_bits.wgsl")
        ),
        BlockType::IQ3_XXS => concat!(
            include_str!("../../shaders/decode/codebook.wgsl"),
            include_str!("../../shaders/decode/iq3_xxs.wgsl"),
            include_str!("../../shaders/decode/four_bits.wgsl")
        ),
        BlockType::IQ3_S => concat!(
            include_str!("../../shaders/decode/codebook.wgsl"),
            include_str!("../../shaders/decode/iq3_s.wgsl"),
            include_str!("../../shaders/decode/four_bits.wgsl")
        ),
        BlockType::NVFP4 => concat!(
            include_str!("../../shaders/decode/codebook.wgsl"),
            include_str!("../../shaders/decode/nvfp4.wgsl")
        ),
        BlockType::TQ1_0 | BlockType::TQ2_0 => {
            include_str!("../../shaders/decode/ternary.wgsl")
        }
        BlockType::Q1_0 => include_str!("../../shaders/decode/q1_0.wgsl"),
        BlockType::Q2_0 => include_str!("../../shaders/decode/q2_0.wgsl"),
        _ => panic!("a matrix of {ty} on a GPU"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn all_bytes(gpu: &Gpu, matrix: &Matrix) -> Vec<u8> {
        let words = |piece: &Piece| {
            let n = piece.n_rows as usize * matrix.row_bytes();
            testing::contents::<u8>(gpu, &piece.buffer, n)
        };
        matrix.pieces().iter().flat_map(words).collect()
    }

    #[test]
    fn rows_are_written_across_pieces() {
        for gpu in testing::gpus() {
            let (ty, n_rows, n_cols) = (BlockType::Q4_0, 200, 96);
            let data: Vec<u8> = (0..n_rows * 54).map(|i| (i % 251) as u8).collect();
            let mut packed = vec![0; n_rows as usize * 56];
            pack_rows(ty, n_cols as usize, &data, &mut packed);
            // Pieces of 7 rows, of 128, and one.
            for (piece_bytes, n_pieces) in [(7 * 56 + 55, 29), (140 * 56, 2), (u64::MAX, 1)] {
                let matrix =
                    Matrix::with_piece_bytes(&gpu, "w", ty, n_rows, n_cols, piece_bytes).unwrap();
                assert_eq!(matrix.pieces().len(), n_pieces);
                assert_eq!(matrix.n_bytes(), 200 * 56);
                assert!(all_bytes(&gpu, &matrix).iter().all(|b| *b == 0));
                matrix.write_rows(&gpu, 10, &packed[10 * 56..150 * 56]).unwrap();
                let found = all_bytes(&gpu, &matrix);
                assert_eq!(found[10 * 56..150 * 56], packed[10 * 56..150 * 56]);
                assert!(found[..560].iter().chain(&found[150 * 56..]).all(|b| *b == 0));
                matrix.pack_and_write(&gpu, &data).unwrap();
                assert_eq!(all_bytes(&gpu, &matrix), packed);
            }
        }
    }

    #[test]
    fn what_is_refused() {
        for gpu in testing::gpus() {
            let error = |ty, n_cols, data: &[u8]| {
                Matrix::upload(&gpu, "wq", ty, 2, n_cols, data).unwrap_err().to_string()
            };
            assert_eq!(
                error(BlockType::Q8_K, 256, &[]),
                "the GPU kernels do not support matrices of type Q8_K (wq)"
            );
            assert_eq!(
                error(BlockType::Q4_K, 32, &[]),
                "the GPU kernels do not support rows of 32 elements of Q4_K (wq)"
            );
            assert_eq!(
                error(BlockType::Q8_0, 32, &[0; 67]),
                "the GPU rejected the bytes of wq: 67 bytes are not 2 rows of 32 elements of Q8_0"
            );
            let error = Matrix::with_piece_bytes(&gpu, "wq", BlockType::F32, 2, 32, 127);
            assert_eq!(
                error.unwrap_err().to_string(),
                "a row of wq needs 128, but the GPU's maxStorageBufferBindingSize is 127"
            );
        }
    }
}
