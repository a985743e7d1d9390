//! Operands of operations: rows of values, and lists of `u32` numbers of a step.

use crate::Buffer;
use crate::device::{Argument, Device};
use crate::kernels::Kernels;

/// Rows of F32 values in a buffer.
#[derive(Debug)]
pub struct Rows<'a, D: Device> {
    buffer: &'a Buffer<D>,
    offset: usize,
    n_rows: usize,
    n_cols: usize,
    stride: usize,
}

impl<D: Device> Clone for Rows<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Device> Copy for Rows<'_, D> {}

impl<'a, D: Device> Rows<'a, D> {
    /// A view of `n_rows` rows of `n_cols` values. The first begins `offset` values after the start of the buffer, and
    /// rows are `stride` values apart.
    ///
    /// # Panics
    /// If the rows exceed the buffer, `n_cols` is zero or more than `stride`, or a number does not fit in 31 bits.
    pub fn new(
        buffer: &'a Buffer<D>,
        offset: usize,
        n_rows: usize,
        n_cols: usize,
        stride: usize,
    ) -> Self {
        assert!(n_rows > 0 && n_cols > 0 && n_cols <= stride, "{n_rows} rows of {n_cols}");
        assert!(n_rows <= i32::MAX as usize && stride <= i32::MAX as usize, "too many rows");
        let end = (n_rows - 1).checked_mul(stride).and_then(|n| n.checked_add(offset + n_cols));
        let n_bytes = end.and_then(|n| n.checked_mul(4));
        assert!(
            n_bytes.is_some_and(|n| n <= buffer.n_bytes()),
            "{n_rows} rows of {n_cols} values at {offset}, {stride} apart, in {} bytes",
            buffer.n_bytes()
        );
        Self { buffer, offset, n_rows, n_cols, stride }
    }

    /// A single row at the start of the buffer.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn vector(buffer: &'a Buffer<D>, n_cols: usize) -> Self {
        Self::vector_at(buffer, 0, n_cols)
    }

    /// A single row `offset` values after the start of the buffer, such as the weights of a norm.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn vector_at(buffer: &'a Buffer<D>, offset: usize, n_cols: usize) -> Self {
        Self::new(buffer, offset, 1, n_cols, n_cols)
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Values per row.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Number of values from the first of the first row to the last of the last, including gaps.
    pub(crate) fn n_values(&self) -> usize {
        (self.n_rows - 1) * self.stride + self.n_cols
    }

    /// Whether every row is aligned to 16 bytes, as required by operations that read four values at a time.
    pub fn is_aligned(&self) -> bool {
        let stride = if self.n_rows == 1 { 0 } else { self.stride };
        self.offset.is_multiple_of(4) && stride.is_multiple_of(4)
    }

    /// The `n_cols` columns from column `first` on.
    ///
    /// # Panics
    /// If the rows have fewer columns, or `n_cols` is zero.
    #[must_use]
    pub fn columns(&self, first: usize, n_cols: usize) -> Self {
        assert!(n_cols > 0 && first + n_cols <= self.n_cols, "{n_cols} columns at {first}");
        Self { offset: self.offset + first, n_cols, ..*self }
    }

    /// Asserts that the rows are on the kernels' device and have this shape.
    pub(crate) fn check(&self, kernels: &Kernels<D>, what: &str, n_rows: usize, n_cols: usize) {
        kernels.check(what, self.buffer, 0);
        let found = (self.n_rows, self.n_cols);
        assert_eq!(found, (n_rows, n_cols), "rows and columns of {what}");
    }

    /// Asserts that rows are aligned to 16 bytes.
    pub(crate) fn check_aligned(&self, what: &str) {
        assert!(self.is_aligned(), "{what} at {}, {} apart", self.offset, self.stride);
    }

    pub(crate) fn address(&self) -> Argument {
        Argument::Address(self.buffer.address() + 4 * self.offset as u64)
    }

    pub(crate) fn stride(&self) -> Argument {
        Argument::I32(self.stride as i32)
    }

    /// Address and stride.
    pub(crate) fn arguments(&self) -> [Argument; 2] {
        [self.address(), self.stride()]
    }
}

/// Address and stride of optional rows; null without rows.
pub(crate) fn optional<D: Device>(rows: Option<Rows<'_, D>>) -> [Argument; 2] {
    rows.map_or([Argument::Address(0), Argument::I32(0)], |rows| [rows.address(), rows.stride()])
}

/// A list of `u32` numbers in a buffer, such as the positions of a step's rows.
#[derive(Debug)]
pub struct List<'a, D: Device> {
    buffer: &'a Buffer<D>,
    offset: usize,
    len: usize,
}

impl<D: Device> Clone for List<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Device> Copy for List<'_, D> {}

impl<'a, D: Device> List<'a, D> {
    /// A view of `len` numbers that begins `offset` numbers after the start of the buffer.
    ///
    /// # Panics
    /// If the list exceeds the buffer.
    pub fn new(buffer: &'a Buffer<D>, offset: usize, len: usize) -> Self {
        let end = offset.checked_add(len).and_then(|n| n.checked_mul(4));
        assert!(
            end.is_some_and(|end| end <= buffer.n_bytes()),
            "{len} numbers at {offset} in {} bytes",
            buffer.n_bytes()
        );
        Self { buffer, offset, len }
    }

    /// A whole buffer as a list.
    pub fn all(buffer: &'a Buffer<D>) -> Self {
        Self::new(buffer, 0, buffer.n_bytes() / 4)
    }

    /// Length of the list.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The list from index `first` on.
    ///
    /// # Panics
    /// If the list is shorter.
    #[must_use]
    pub fn from(&self, first: usize) -> Self {
        assert!(first <= self.len, "number {first} of {}", self.len);
        Self { offset: self.offset + first, len: self.len - first, ..*self }
    }

    /// Asserts that the list is on the kernels' device and has at least `n` numbers.
    pub(crate) fn check(&self, kernels: &Kernels<D>, what: &str, n: usize) {
        kernels.check(what, self.buffer, 0);
        assert!(self.len >= n, "{what}: {} numbers, {n} are needed", self.len);
    }

    pub(crate) fn address(&self) -> Argument {
        Argument::Address(self.buffer.address() + 4 * self.offset as u64)
    }
}
