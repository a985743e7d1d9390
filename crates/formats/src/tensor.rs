//! A tensor of a file: what is known without its data, and the view of it.

use crate::{Bytes, TensorType};

/// A tensor's description, as the file's header gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name.
    pub name: String,
    /// The element type.
    pub ty: TensorType,
    /// Row-major, outermost dimension first, in both formats. A scalar has no
    /// dimensions.
    pub shape: Vec<usize>,
    /// Length of the data in bytes. Of an unknown type it is an upper bound: to where the next
    /// tensor's data starts, or to the end of the file.
    pub n_bytes: usize,
    /// Which file of a split model holds the data, from 0.
    pub shard: usize,
    /// Where the data starts, from the start of that file.
    pub(crate) start: usize,
}

impl TensorInfo {
    /// The number of elements.
    pub fn n_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Where the data starts in its file, in bytes.
    pub fn offset(&self) -> usize {
        self.start
    }

    /// The view of the data in `file`, which the header was checked against.
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
    /// Little-endian elements or blocks, rows one after another.
    pub data: Bytes, // exactly ty.size_of_shape(shape) bytes, if the type is known
}

impl Tensor {
    /// The number of elements.
    pub fn n_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The same tensor with its data copied out of the file.
    #[must_use]
    pub fn to_owned_copy(&self) -> Self {
        Self { data: self.data.to_owned_copy(), ..self.clone() }
    }
}
