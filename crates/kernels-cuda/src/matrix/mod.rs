//! Matrices on a device, packed for wide loads.

use std::sync::Arc;

use realizar_quant::BlockType;

use crate::device::{Argument, Device};
use crate::{Buffer, Error};

mod pack;

use pack::{Planes, UNIT_BYTES, pack, planes};

/// The types that kernels take, in the order of their tables.
pub const BLOCK_TYPES: [BlockType; 11] = [
    BlockType::F32,
    BlockType::F16,
    BlockType::BF16,
    BlockType::Q4_0,
    BlockType::Q4_1,
    BlockType::Q5_0,
    BlockType::Q5_1,
    BlockType::Q8_0,
    BlockType::Q4_K,
    BlockType::Q5_K,
    BlockType::Q6_K,
];

/// A matrix of weights on a device.
#[derive(Debug)]
pub struct Matrix<D: Device> {
    buffer: Buffer<D>,
    ty: BlockType,
    n_rows: usize,
    n_cols: usize,
    /// Where the high plane and the head begin.
    offsets: [usize; 2],
}

impl<D: Device> Matrix<D> {
    /// Packs and uploads rows of blocks, as a file has them. `what` names the matrix in messages.
    ///
    /// # Errors
    /// [`Error::BlockType`] for a type that no kernel takes; [`Error::Matrix`] if `data` is not `n_rows` rows
    /// of `n_cols` elements; [`Error::OutOfMemory`], or what the driver reports.
    pub fn upload(
        device: &Arc<D>,
        stream: &D::Stream,
        what: &str,
        ty: BlockType,
        n_rows: usize,
        n_cols: usize,
        data: &[u8], // [n_rows, n_cols]
    ) -> Result<Self, Error> {
        let planes = planes(ty).ok_or(Error::BlockType(ty))?;
        let wrong = |message: String| Error::Matrix { what: what.to_owned(), message };
        let row_bytes = ty.row_bytes(n_cols).map_err(|e| wrong(e.to_string()))?;
        let wanted = n_rows.checked_mul(row_bytes);
        if n_rows == 0 || n_cols == 0 || wanted != Some(data.len()) {
            return Err(wrong(format!(
                "{} bytes for {n_rows} rows of {n_cols} elements of type {ty}, {row_bytes} bytes each",
                data.len()
            )));
        }
        if n_rows > i32::MAX as usize || n_cols > i32::MAX as usize {
            return Err(wrong(format!("{n_rows} rows of {n_cols} elements do not fit in 31 bits")));
        }
        let (packed, offsets) = pack_rows(ty, planes, n_rows, n_cols, data);
        let buffer = Buffer::with(device, stream, what, &packed)?;
        Ok(Self { buffer, ty, n_rows, n_cols, offsets })
    }

    /// Its type.
    pub fn ty(&self) -> BlockType {
        self.ty
    }

    /// Rows, which are the elements of a product.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Elements of a row.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Bytes on the device.
    pub fn n_bytes(&self) -> usize {
        self.buffer.n_bytes()
    }

    /// The memory of all planes.
    pub(crate) fn buffer(&self) -> &Buffer<D> {
        &self.buffer
    }

    /// The addresses of the planes; null is what the type does not have.
    pub(crate) fn planes(&self) -> [Argument; 3] {
        let at = |n_bytes: usize, offset: usize| match n_bytes {
            0 => Argument::Address(0),
            _ => Argument::Address(self.buffer.address() + offset as u64),
        };
        let Planes { main, high, head } = planes(self.ty).expect("checked when it was uploaded");
        [at(main, 0), at(high, self.offsets[0]), at(head, self.offsets[1])]
    }
}

/// All planes, one behind the other, and where the second and third begin.
fn pack_rows(
    ty: BlockType,
    planes: Planes,
    n_rows: usize,
    n_cols: usize,
    data: &[u8],
) -> (Vec<u8>, [usize; 2]) {
    let n_blocks = n_cols / ty.block_len();
    // Rows of floats are filled up to whole units with zeros.
    let main_row = (n_blocks * planes.main).next_multiple_of(UNIT_BYTES);
    let high_at = n_rows * main_row;
    let head_at = high_at + (n_rows * n_blocks * planes.high).next_multiple_of(UNIT_BYTES);
    let mut packed = vec![0; head_at + n_rows * n_blocks * planes.head];
    let (main, rest) = packed.split_at_mut(high_at);
    let (high, head) = rest.split_at_mut(head_at - high_at);
    for (i, block) in data.chunks_exact(ty.block_bytes()).enumerate() {
        let (row, col) = (i / n_blocks, i % n_blocks);
        pack(
            ty,
            block,
            &mut main[row * main_row + col * planes.main..][..planes.main],
            &mut high[i * planes.high..][..planes.high],
            &mut head[i * planes.head..][..planes.head],
        );
    }
    (packed, [high_at, head_at])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::bench;

    #[test]
    fn what_does_not_fit_is_named() {
        let (device, stream) = bench();
        let cases = [
            (BlockType::IQ1_S, 1, 256, 50, "no CUDA kernel takes weights of type IQ1_S"),
            (BlockType::Q8_0, 2, 33, 68, "w: "),
            (
                BlockType::Q8_0,
                2,
                32,
                67,
                "w: 67 bytes for 2 rows of 32 elements of type Q8_0, 34 bytes",
            ),
            (BlockType::F32, 0, 4, 0, "w: 0 bytes for 0 rows"),
        ];
        for (ty, n_rows, n_cols, n_bytes, expected) in cases {
            let data = vec![0; n_bytes];
            let matrix = Matrix::upload(&device, &stream, "w", ty, n_rows, n_cols, &data);
            let message = matrix.unwrap_err().to_string();
            assert!(message.starts_with(expected), "{message}");
        }
    }
}
