//! Views of row-major matrices of f32, with a stride between rows.
//!
//! The sizes are checked once, when a view is made. [`RowsMut`] can be cut into
//! views of disjoint columns, which slices cannot express.

use std::marker::PhantomData;
use std::ops::Range;

/// Number of elements that a view of `n_rows` rows spans; panics on overflow.
fn span(n_rows: usize, n_cols: usize, stride: usize) -> usize {
    assert!(n_cols <= stride || n_rows <= 1, "{n_cols} columns do not fit a stride of {stride}");
    let before_last = n_rows.saturating_sub(1).checked_mul(stride);
    let n_last = if n_rows == 0 { 0 } else { n_cols };
    before_last.and_then(|n| n.checked_add(n_last)).expect("the span of a view fits usize")
}

/// A read-only matrix: row `i` is `data[i * stride..][..n_cols]`.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    data: &'a [f32], // [>= (n_rows - 1) * stride + n_cols]
    n_rows: usize,
    n_cols: usize,
    stride: usize,
}

impl<'a> Rows<'a> {
    /// A dense matrix of `n_rows` rows.
    ///
    /// # Panics
    /// If `data` is not `n_rows * n_cols` long.
    pub fn new(data: &'a [f32], n_rows: usize, n_cols: usize) -> Self {
        assert_eq!(Some(data.len()), n_rows.checked_mul(n_cols), "{n_rows} x {n_cols} matrix");
        Self { data, n_rows, n_cols, stride: n_cols }
    }

    /// A matrix whose rows start `stride` elements apart.
    ///
    /// # Panics
    /// If the rows overlap or `data` is too short.
    pub fn with_stride(data: &'a [f32], n_rows: usize, n_cols: usize, stride: usize) -> Self {
        assert!(span(n_rows, n_cols, stride) <= data.len(), "rows end past the data");
        Self { data, n_rows, n_cols, stride }
    }

    /// Number of rows.
    pub const fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Elements per row.
    pub const fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Elements from the start of a row to the start of the next.
    pub const fn stride(&self) -> usize {
        self.stride
    }

    /// Row `i`. `[n_cols]`
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn row(&self, i: usize) -> &'a [f32] {
        assert!(i < self.n_rows, "row {i} of {}", self.n_rows);
        &self.data[i * self.stride..][..self.n_cols]
    }

    /// The rows in `range`.
    ///
    /// # Panics
    /// If the range ends past the last row.
    pub fn slice_rows(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.n_rows, "rows {range:?}");
        let data = if range.is_empty() { &[] } else { &self.data[range.start * self.stride..] };
        Self { data, n_rows: range.len(), ..*self }
    }

    /// The columns in `range` of every row.
    ///
    /// # Panics
    /// If the range ends past the last column.
    pub fn slice_cols(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.n_cols, "columns {range:?}");
        let data = if self.n_rows == 0 { &[] } else { &self.data[range.start..] };
        Self { data, n_cols: range.len(), ..*self }
    }

    /// The rows in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [f32]> + use<'a> {
        let view = *self;
        (0..view.n_rows).map(move |i| view.row(i))
    }
}

/// A mutable matrix: row `i` is the `n_cols` elements from `i * stride` on.
#[derive(Debug)]
pub struct RowsMut<'a> {
    /// Start of the first row. All elements of all rows are valid for reads and writes during `'a`, and
    /// are accessed through this view alone.
    ptr: *mut f32,
    n_rows: usize,
    n_cols: usize,
    stride: usize,
    _data: PhantomData<&'a mut [f32]>,
}

// SAFETY: a view is an exclusive borrow of f32 elements, as `&mut [f32]` is, and
// that is `Send`.
unsafe impl Send for RowsMut<'_> {}
// SAFETY: as above; `&RowsMut` gives only reads, as `&&mut [f32]` does.
unsafe impl Sync for RowsMut<'_> {}

impl<'a> RowsMut<'a> {
    /// A dense matrix of `n_rows` rows.
    ///
    /// # Panics
    /// If `data` is not `n_rows * n_cols` long.
    pub fn new(data: &'a mut [f32], n_rows: usize, n_cols: usize) -> Self {
        assert_eq!(Some(data.len()), n_rows.checked_mul(n_cols), "{n_rows} x {n_cols} matrix");
        Self { ptr: data.as_mut_ptr(), n_rows, n_cols, stride: n_cols, _data: PhantomData }
    }

    /// A matrix whose rows start `stride` elements apart.
    ///
    /// # Panics
    /// If the rows overlap or `data` is too short.
    pub fn with_stride(data: &'a mut [f32], n_rows: usize, n_cols: usize, stride: usize) -> Self {
        assert!(span(n_rows, n_cols, stride) <= data.len(), "rows end past the data");
        Self { ptr: data.as_mut_ptr(), n_rows, n_cols, stride, _data: PhantomData }
    }

    /// Number of rows.
    pub const fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Elements per row.
    pub const fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Elements from the start of a row to the start of the next.
    pub const fn stride(&self) -> usize {
        self.stride
    }

    /// Row `i`, to read. `[n_cols]`
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn row(&self, i: usize) -> &[f32] {
        assert!(i < self.n_rows, "row {i} of {}", self.n_rows);
        // SAFETY: `i` was checked, so the row lies in the memory of this view,
        // which `&self` keeps from being written.
        unsafe { std::slice::from_raw_parts(self.ptr.add(i * self.stride), self.n_cols) }
    }

    /// Row `i`, to write. `[n_cols]`
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn row_mut(&mut self, i: usize) -> &mut [f32] {
        assert!(i < self.n_rows, "row {i} of {}", self.n_rows);
        // SAFETY: `i` was checked, so the row lies in the memory of this view,
        // and `&mut self` makes the borrow exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(i * self.stride), self.n_cols) }
    }

    /// Start of the first row.
    #[cfg(target_arch = "x86_64")]
    pub(crate) const fn as_mut_ptr(&mut self) -> *mut f32 {
        self.ptr
    }

    /// The same matrix with a shorter lifetime.
    pub fn reborrow(&mut self) -> RowsMut<'_> {
        RowsMut { _data: PhantomData, ..*self }
    }

    /// The rows in `range`.
    ///
    /// # Panics
    /// If the range ends past the last row.
    pub fn slice_rows(&mut self, range: Range<usize>) -> RowsMut<'_> {
        let n_cols = self.n_cols;
        self.slice(range, 0..n_cols)
    }

    /// The columns in `range` of every row.
    ///
    /// # Panics
    /// If the range ends past the last column.
    pub fn slice_cols(&mut self, range: Range<usize>) -> RowsMut<'_> {
        let n_rows = self.n_rows;
        self.slice(0..n_rows, range)
    }

    /// The rows and columns of one tile.
    ///
    /// # Panics
    /// If a range ends past the matrix.
    pub fn slice(&mut self, rows: Range<usize>, cols: Range<usize>) -> RowsMut<'_> {
        // SAFETY: `&mut self` is exclusive for as long as the tile lives.
        unsafe { self.tile(rows, cols) }
    }

    /// The first `mid` columns of every row, and the rest.
    ///
    /// # Panics
    /// If `mid` is past the last column.
    pub fn split_cols(self, mid: usize) -> (Self, Self) {
        assert!(mid <= self.n_cols, "column {mid} of {}", self.n_cols);
        let left = RowsMut { n_cols: mid, ..self };
        // `wrapping_add`: a matrix without rows has no memory to stay inside.
        let right = RowsMut { ptr: self.ptr.wrapping_add(mid), n_cols: self.n_cols - mid, ..self };
        (left, right)
    }

    /// A tile of the matrix, from a shared reference.
    ///
    /// # Panics
    /// If a range ends past the matrix.
    ///
    /// # Safety
    /// While the tile lives, none of its elements may be reached in another way.
    pub(crate) unsafe fn tile(&self, rows: Range<usize>, cols: Range<usize>) -> RowsMut<'_> {
        assert!(rows.start <= rows.end && rows.end <= self.n_rows, "rows {rows:?}");
        assert!(cols.start <= cols.end && cols.end <= self.n_cols, "columns {cols:?}");
        // `wrapping_add`: an empty tile may start past the end of the memory.
        let ptr = self.ptr.wrapping_add(rows.start * self.stride + cols.start);
        let (n_rows, n_cols) = (rows.len(), cols.len());
        RowsMut { ptr, n_rows, n_cols, stride: self.stride, _data: PhantomData }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_find_their_elements() {
        let data: Vec<f32> = (0..24).map(|i| i as f32).collect();
        let m = Rows::with_stride(&data, 3, 5, 8);
        assert_eq!(m.row(2), &[16.0, 17.0, 18.0, 19.0, 20.0]);
        assert_eq!(m.slice_rows(1..3).row(0), m.row(1));
        assert_eq!(m.slice_cols(1..3).row(1), &[9.0, 10.0]);
        assert_eq!(m.slice_rows(3..3).n_rows(), 0);
        assert_eq!(m.iter().map(|r| r[0]).collect::<Vec<_>>(), [0.0, 8.0, 16.0]);
    }

    #[test]
    fn disjoint_columns_are_written_apart() {
        let mut data = vec![0.0; 10];
        let (mut a, mut b) = RowsMut::new(&mut data, 2, 5).split_cols(2);
        a.row_mut(1).fill(1.0);
        b.row_mut(0).fill(2.0);
        b.slice(1..2, 1..3).row_mut(0).fill(3.0);
        assert_eq!(data, [0.0, 0.0, 2.0, 2.0, 2.0, 1.0, 1.0, 0.0, 3.0, 3.0]);
    }

    #[test]
    #[should_panic(expected = "past the data")]
    fn a_short_slice_is_refused() {
        Rows::with_stride(&[0.0; 12], 3, 5, 4 + 1);
    }
}
