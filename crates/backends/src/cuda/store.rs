//! Weights in the memory of a CUDA device.

use crate::gpu::weights::{self, MatrixShape, WeightStore};
use realizar_kernels_cuda::{Buffer, Device, Error, Matrix, pack_rows, packed_row_bytes};
use realizar_quant::BlockType;
use std::sync::Arc;

/// Where weights go, and the stream in which they do.
#[derive(Debug)]
pub(super) struct Store<D: Device> {
    pub(super) device: Arc<D>,
    pub(super) stream: D::Stream,
}

/// A plan's weights on the device.
pub(super) type DeviceWeights<D> = weights::DeviceWeights<Store<D>>;

impl<D: Device> WeightStore for Store<D> {
    type Matrix = Matrix<D>;
    type Vectors = Buffer<D>;
    type Error = Error;

    fn matrix_bytes(shape: &MatrixShape) -> usize {
        let MatrixShape { ty, n_rows, n_cols, .. } = *shape;
        // What no kernel takes is refused before anything is uploaded.
        match Matrix::<D>::check("weights", ty, n_rows, n_cols) {
            Ok(()) => Matrix::<D>::bytes(ty, n_rows, n_cols),
            Err(_) => 0,
        }
    }

    fn pack_rows(ty: BlockType, n_cols: usize, rows: &[u8]) -> Vec<u8> {
        let file_bytes = ty.row_bytes(n_cols).expect("rows were checked when they were bound");
        let mut packed = vec![0; rows.len() / file_bytes * packed_row_bytes(ty, n_cols)];
        pack_rows(ty, n_cols, rows, &mut packed);
        packed
    }

    fn matrix(&self, what: &str, shape: &MatrixShape) -> Result<Matrix<D>, Error> {
        Matrix::new(&self.device, what, shape.ty, shape.n_rows, shape.n_cols)
    }

    fn write_rows(&self, to: &Matrix<D>, first: usize, rows: &[u8]) -> Result<(), Error> {
        to.write_rows(&self.stream, first, rows)
    }

    fn flush(&self) -> Result<(), Error> {
        self.device.synchronize(&self.stream)
    }

    fn vectors(&self, what: &str, values: &[f32]) -> Result<Buffer<D>, Error> {
        Buffer::with(&self.device, &self.stream, what, values)
    }
}
