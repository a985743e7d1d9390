//! Weights in the memory of a GPU by wgpu.

use crate::gpu::weights::{self, MatrixShape, WeightStore};
use realizar_kernels_wgpu::{Buffer, Error, Gpu, Matrix, pack_rows, packed_row_bytes};
use realizar_quant::BlockType;

/// A plan's weights on the device.
pub(super) type DeviceWeights = weights::DeviceWeights<Gpu>;

impl WeightStore for Gpu {
    type Matrix = Matrix;
    type Vectors = Buffer;
    type Error = Error;

    fn matrix_bytes(shape: &MatrixShape) -> usize {
        packed_row_bytes(shape.ty, shape.n_cols).saturating_mul(shape.n_rows)
    }

    fn pack_rows(ty: BlockType, n_cols: usize, rows: &[u8]) -> Vec<u8> {
        let file_bytes = ty.row_bytes(n_cols).expect("rows were checked when they were bound");
        let mut packed = vec![0; rows.len() / file_bytes * packed_row_bytes(ty, n_cols)];
        pack_rows(ty, n_cols, rows, &mut packed);
        packed
    }

    fn matrix(&self, what: &str, shape: &MatrixShape) -> Result<Matrix, Error> {
        let MatrixShape { ty, n_rows, n_cols, n_experts } = *shape;
        // What does not fit is more than any device takes, and refused.
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        match n_experts {
            Some(n) => {
                let of_each = [n, n_rows / n.max(1), n_cols].map(number);
                Matrix::experts(self, what, ty, of_each)
            }
            None => Matrix::new(self, what, ty, number(n_rows), number(n_cols)),
        }
    }

    fn write_rows(&self, to: &Matrix, first: usize, rows: &[u8]) -> Result<(), Error> {
        to.write_rows(self, first as u32, rows)
    }

    /// Waiting frees the memory in between.
    fn flush(&self) -> Result<(), Error> {
        self.record().submit()?;
        self.wait()
    }

    fn vectors(&self, what: &str, values: &[f32]) -> Result<Buffer, Error> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let buffer = self.buffer(what, bytes.len() as u64)?;
        self.write(&buffer, 0, bytes)?;
        Ok(buffer)
    }
}
