//! Rows of f32 in a buffer of values, and which of them a kernel works on.
//!
//! Kernels on rows share two buffers: `values`, where every matrix of rows
//! lies, and `batch`, 32-bit words that change with every step. A kernel is bound
//! once; how many rows it works on, and which, it reads from `batch`.

use crate::Buffer;

/// A matrix of rows: row `r` is `values[start + r * stride ..][.. width]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// Index of its first element.
    pub start: u32,
    /// Elements from one row to the next.
    pub stride: u32,
    /// Elements of a row.
    pub width: u32,
}

impl View {
    /// Rows of `width` elements without gaps, from element `start` on.
    pub fn dense(start: u32, width: u32) -> Self {
        Self { start, stride: width, width }
    }
}

/// Where the rows of a kernel are found: `batch[at]` is the first row and
/// `batch[at + 1]` their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowsAt(pub u32);

/// The buffers that kernels on rows share.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// Every matrix of rows, f32.
    pub values: &'a Buffer,
    /// The words of the step, u32.
    pub batch: &'a Buffer,
    /// Which rows.
    pub at: RowsAt,
}
