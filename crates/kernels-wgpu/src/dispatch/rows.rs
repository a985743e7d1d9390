//! Rows of f32 in a shared buffer, and the selection of the rows that a kernel works on.
//!
//! Kernels on rows share two buffers: `values` has all matrices of rows, and `batch` has 32-bit words that
//! change with every step. A kernel is bound once, and reads the range of its rows from `batch`.

use crate::Buffer;

/// A matrix of rows: row `r` is `values[start + r * stride..][..width]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// Index of the first element.
    pub start: u32,
    /// Elements from one row to the next.
    pub stride: u32,
    /// Elements per row.
    pub width: u32,
}

impl View {
    /// Contiguous rows of `width` elements from element `start` on.
    pub fn dense(start: u32, width: u32) -> Self {
        Self { start, stride: width, width }
    }
}

/// Index in `batch` of a kernel's range of rows: `batch[at]` is the first row and `batch[at + 1]` the
/// number of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowsAt(pub u32);

/// The shared buffers of kernels on rows.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// All matrices of rows, f32.
    pub values: &'a Buffer,
    /// The words of the step, u32.
    pub batch: &'a Buffer,
    /// The rows to work on.
    pub at: RowsAt,
}
