//! Weight matrices on a device, packed for 16-byte loads.

use std::sync::Arc;

use realizar_quant::BlockType;

use crate::device::{Argument, Device};
use crate::{Buffer, Error};

mod pack;

use pack::{Planes, UNIT_BYTES, planes, row_planes};
pub use pack::{pack_rows, packed_row_bytes};

/// Bytes that are packed at a time during an upload.
const STAGING_BYTES: usize = 16 << 20;

/// Types with kernels, in the order of the kernels' tables.
pub const BLOCK_TYPES: [BlockType; 30] = [
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
    BlockType::Q2_K,
    BlockType::Q3_K,
    BlockType::IQ4_NL,
    BlockType::IQ4_XS,
    BlockType::MXFP4,
    BlockType::Q4_Z,
    BlockType::F8_0,
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

/// Types with integer levels, which products can multiply with 8-bit activations.
pub(crate) const INTEGER_TYPES: [BlockType; 26] = [
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

/// A weight matrix on a device. Matrices of one type and width may be stacked in it by rows, such as those of experts.
#[derive(Debug)]
pub struct Matrix<D: Device> {
    buffer: Buffer<D>,
    ty: BlockType,
    n_rows: usize,
    n_cols: usize,
}

impl<D: Device> Matrix<D> {
    /// Allocates a matrix whose rows are undefined until they are written. Messages name it `what`.
    ///
    /// # Errors
    /// As [`check`](Self::check), and [`Error::OutOfMemory`].
    pub fn new(
        device: &Arc<D>,
        what: &str,
        ty: BlockType,
        n_rows: usize,
        n_cols: usize,
    ) -> Result<Self, Error> {
        Self::check(what, ty, n_rows, n_cols)?;
        let buffer = Buffer::new(device, what, Self::bytes(ty, n_rows, n_cols))?;
        Ok(Self { buffer, ty, n_rows, n_cols })
    }

    /// Checks whether kernels support a matrix of this type and shape.
    ///
    /// # Errors
    /// [`Error::BlockType`] for a type without kernels; [`Error::Matrix`] if the matrix has no rows or columns, more
    /// than fit in 31 bits, or rows that are not whole blocks.
    pub fn check(what: &str, ty: BlockType, n_rows: usize, n_cols: usize) -> Result<(), Error> {
        planes(ty).ok_or(Error::BlockType(ty))?;
        let wrong = |message: String| Error::Matrix { what: what.to_owned(), message };
        ty.row_bytes(n_cols).map_err(|e| wrong(e.to_string()))?;
        let max = i32::MAX as usize;
        if n_rows == 0 || n_cols == 0 || n_rows > max || n_cols > max {
            return Err(wrong(format!("{n_rows} rows of {n_cols} elements of type {ty}")));
        }
        Ok(())
    }

    /// Bytes of a matrix on a device.
    ///
    /// # Panics
    /// If [`check`](Self::check) rejects the type or shape.
    pub fn bytes(ty: BlockType, n_rows: usize, n_cols: usize) -> usize {
        let Planes { main, high, head } = row_planes(ty, n_cols);
        let whole = |n_bytes: usize| n_bytes.next_multiple_of(UNIT_BYTES);
        n_rows * main + whole(n_rows * high) + whole(n_rows * head)
    }

    /// Packs and uploads rows of blocks in the format of files. Messages name the matrix `what`.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`Error::Matrix`] if `data` is not `n_rows` rows of `n_cols` elements, or any error of
    /// the driver.
    pub fn upload(
        device: &Arc<D>,
        stream: &D::Stream,
        what: &str,
        ty: BlockType,
        n_rows: usize,
        n_cols: usize,
        data: &[u8], // [n_rows, n_cols]
    ) -> Result<Self, Error> {
        Self::check(what, ty, n_rows, n_cols)?;
        let wrong = |message: String| Error::Matrix { what: what.to_owned(), message };
        let from = ty.row_bytes(n_cols).map_err(|e| wrong(e.to_string()))?;
        if n_rows.checked_mul(from) != Some(data.len()) {
            return Err(wrong(format!(
                "{} bytes for {n_rows} rows of {n_cols} elements of type {ty}, {from} bytes each",
                data.len()
            )));
        }
        let matrix = Self::new(device, what, ty, n_rows, n_cols)?;
        let to = packed_row_bytes(ty, n_cols);
        let n_at_once = (STAGING_BYTES / to).max(1);
        let mut packed = vec![0; n_at_once.min(n_rows) * to];
        for (rows, first_row) in data.chunks(n_at_once * from).zip((0..).step_by(n_at_once)) {
            let packed = &mut packed[..rows.len() / from * to];
            pack_rows(ty, n_cols, rows, packed);
            matrix.write_rows(stream, first_row, packed)?;
        }
        Ok(matrix)
    }

    /// Queues copies of rows that one call of [`pack_rows`] has packed, to the rows from `first_row` on.
    ///
    /// # Errors
    /// Any error of the driver.
    ///
    /// # Panics
    /// If these are not whole rows, or exceed the matrix.
    pub fn write_rows(
        &self,
        stream: &D::Stream,
        first_row: usize,
        packed: &[u8],
    ) -> Result<(), Error> {
        let Planes { main, high, head } = row_planes(self.ty, self.n_cols);
        let n = packed.len() / (main + high + head);
        assert!(
            n * (main + high + head) == packed.len() && first_row + n <= self.n_rows,
            "{} bytes as rows of {} from {first_row} on, and there are {}",
            packed.len(),
            self.ty,
            self.n_rows
        );
        let (mains, rest) = packed.split_at(n * main);
        let (highs, heads) = rest.split_at(n * high);
        let [high_at, head_at] = self.offsets();
        for (at, row, bytes) in [(0, main, mains), (high_at, high, highs), (head_at, head, heads)] {
            if !bytes.is_empty() {
                self.buffer.write(stream, at + first_row * row, bytes)?;
            }
        }
        Ok(())
    }

    /// Queues copies of the first `n` rows that fill all other rows.
    ///
    /// # Errors
    /// Any error of the driver.
    #[cfg(feature = "bench")]
    pub(crate) fn repeat_rows(&self, stream: &D::Stream, n: usize) -> Result<(), Error> {
        assert!(0 < n && n <= self.n_rows, "{n} of {} rows", self.n_rows);
        let Planes { main, high, head } = row_planes(self.ty, self.n_cols);
        let [high_at, head_at] = self.offsets();
        for (at, row) in [(0, main), (high_at, high), (head_at, head)] {
            let mut done = n;
            while done < self.n_rows && row > 0 {
                let more = done.min(self.n_rows - done);
                let from = self.buffer.address() + at as u64;
                let to = from + (done * row) as u64;
                // SAFETY: both ranges are rows of one plane, which the buffer has, and the second begins after the
                // first.
                unsafe { self.buffer.device().copy(stream, to, from, more * row) }?;
                done += more;
            }
        }
        Ok(())
    }

    /// Offsets of the second and the third plane.
    fn offsets(&self) -> [usize; 2] {
        let Planes { main, high, .. } = row_planes(self.ty, self.n_cols);
        let high_at = self.n_rows * main;
        [high_at, high_at + (self.n_rows * high).next_multiple_of(UNIT_BYTES)]
    }

    /// The block type.
    pub fn ty(&self) -> BlockType {
        self.ty
    }

    /// Number of rows, the output dimension of a product.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Number of columns, the input dimension of a product.
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

    /// Addresses of the planes; null for planes that the type does not have.
    pub(crate) fn planes(&self) -> [Argument; 3] {
        let at = |n_bytes: usize, offset: usize| match n_bytes {
            0 => Argument::Address(0),
            _ => Argument::Address(self.buffer.address() + offset as u64),
        };
        let Planes { main, high, head } = row_planes(self.ty, self.n_cols);
        let [high_at, head_at] = self.offsets();
        [at(main, 0), at(high, high_at), at(head, head_at)]
    }
}

#[cfg(any(test, feature = "tests"))]
pub(super) mod tests {
    use super::*;
    use crate::testing::{bench, kernels, on_device, read};
    use crate::{List, Rows, embed};

    #[cfg_attr(test, test)]
    fn what_does_not_fit_is_named() {
        let (device, stream) = bench();
        let cases = [
            (BlockType::Q8_1, 1, 32, 36, "no CUDA kernel supports weights of type Q8_1"),
            (BlockType::Q8_0, 2, 33, 68, "w: "),
            (
                BlockType::Q8_0,
                2,
                32,
                67,
                "w: 67 bytes for 2 rows of 32 elements of type Q8_0, 34 bytes",
            ),
            (BlockType::F32, 0, 4, 0, "w: 0 rows of 4 elements of type F32"),
        ];
        for (ty, n_rows, n_cols, n_bytes, expected) in cases {
            let data = vec![0; n_bytes];
            let matrix = Matrix::upload(&device, &stream, "w", ty, n_rows, n_cols, &data);
            let message = matrix.unwrap_err().to_string();
            assert!(message.starts_with(expected), "{message}");
        }
    }

    /// Blocks of random bits, with scales and zero points of realistic sizes.
    fn random_rows(ty: BlockType, n_bytes: usize, seed: u64) -> Vec<u8> {
        let mut state = seed;
        let mut rows: Vec<u8> = (0..n_bytes)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        for block in rows.chunks_exact_mut(ty.block_bytes()) {
            match ty {
                BlockType::F8_0 => block[3] &= 0x3f,
                // 5.0 in binary16.
                BlockType::Q4_Z => block[2..4].copy_from_slice(&[0x00, 0x45]),
                _ => {}
            }
        }
        rows
    }

    #[cfg_attr(test, test)]
    fn rows_written_in_pieces_are_the_values_of_their_blocks() {
        let (kernels, stream) = kernels();
        for ty in BLOCK_TYPES {
            let (n_rows, n_cols) = (9, if ty.block_len() == 1 { 37 } else { 512 });
            let (from, to) = (ty.row_bytes(n_cols).unwrap(), packed_row_bytes(ty, n_cols));
            let rows = random_rows(ty, n_rows * from, 5);
            let matrix = Matrix::new(kernels.device(), "w", ty, n_rows, n_cols).unwrap();
            assert_eq!(
                matrix.n_bytes(),
                Matrix::<crate::testing::TestDevice>::bytes(ty, 9, n_cols)
            );
            for (first, end) in [(4, 9), (0, 1), (1, 4)] {
                let mut packed = vec![0xee; (end - first) * to];
                pack_rows(ty, n_cols, &rows[first * from..end * from], &mut packed);
                matrix.write_rows(&stream, first, &packed).unwrap();
            }
            let stride = n_cols.next_multiple_of(4);
            let ids: Vec<u32> = (0..9).collect();
            let ids = on_device(kernels.device(), &stream, &ids);
            let out = on_device(kernels.device(), &stream, &vec![0.0; n_rows * stride]);
            let out_rows = Rows::new(&out, 0, n_rows, n_cols, stride);
            embed(&kernels, &stream, &matrix, List::all(&ids), 1.0, out_rows).unwrap();
            let found = read(&stream, &out, n_rows * stride);
            let mut expected = vec![0.0f32; n_cols];
            for (row, found) in rows.chunks_exact(from).zip(found.chunks_exact(stride)) {
                realizar_quant::dequantize(ty, row, &mut expected).unwrap();
                let same = |a: f32, b: f32| a == b || a.is_nan() && b.is_nan();
                let at = expected.iter().zip(found).position(|(&a, &b)| !same(a, b));
                assert_eq!(at.map(|i| (i, expected[i], found[i])), None, "{ty}");
            }
        }
    }

    #[cfg_attr(test, test)]
    #[cfg_attr(
        test,
        should_panic(expected = "68 bytes as rows of Q8_0 from 1 on, and there are 2")
    )]
    fn no_more_rows_are_written_than_there_are() {
        let (device, stream) = bench();
        let matrix = Matrix::new(&device, "w", BlockType::Q8_0, 2, 32).unwrap();
        matrix.write_rows(&stream, 1, &[0; 68]).unwrap();
    }

    crate::testing::tests![
        what_does_not_fit_is_named,
        rows_written_in_pieces_are_the_values_of_their_blocks,
        no_more_rows_are_written_than_there_are => "68 bytes as rows of Q8_0 from 1 on, and there are 2",
    ];
}
