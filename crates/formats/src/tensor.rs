//! Tensors of a file: descriptions, and views with data.

use crate::{Bytes, TensorType};

/// A tensor's description in the file's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name.
    pub name: String,
    /// The element type.
    pub ty: TensorType,
    /// Row-major, outermost dimension first, in both formats. A scalar has no
    /// dimensions.
    pub shape: Vec<usize>,
    /// Length of the data in bytes. For an unknown type it is an upper bound: the distance to the next
    /// tensor's data or to the end of the file.
    pub n_bytes: usize,
    /// Index of the file of a split model that has the data, from 0.
    pub shard: usize,
    /// Offset of the data in that file.
    pub(crate) start: usize,
}

impl TensorInfo {
    /// The number of elements.
    pub fn n_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Offset of the data in its file, in bytes.
    pub fn offset(&self) -> usize {
        self.start
    }

    /// A view of the data in `file`, whose size the header was checked against.
    pub(crate) fn view(&self, file: &Bytes) -> Tensor {
        Tensor {
            name: self.name.clone(),
            ty: self.ty,
            shape: self.shape.clone(),
            data: file.slice(self.start..self.start + self.n_bytes),
        }
    }
}

/// A tensor with its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The name.
    pub name: String,
    /// The element type.
    pub ty: TensorType,
    /// Row-major, outermost dimension first, in both formats. A scalar has no
    /// dimensions.
    pub shape: Vec<usize>,
    /// Little-endian elements or blocks, row after row.
    pub data: Bytes, // exactly ty.size_of_shape(shape) bytes, if the type is known
}

impl Tensor {
    /// The number of elements.
    pub fn n_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// A copy of the tensor with its data in memory.
    #[must_use]
    pub fn to_owned_copy(&self) -> Self {
        Self { data: self.data.to_owned_copy(), ..self.clone() }
    }
}
