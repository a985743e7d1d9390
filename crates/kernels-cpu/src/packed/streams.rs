//! Prefetch distances of the weight streams, and activation rows as pointers, for the vector kernels. The
//! callers have checked the lengths.

use std::ops::Range;

use super::GROUP_LEN;
use super::format::Format;
use crate::quantize::{QuantizedRow, QuantizedRows};

/// Prefetch distance of each of several streams, in bytes, into the L1 cache.
pub(super) const PREFETCH_BYTES: usize = 2048;

/// Columns that are read from a stream before the next stream's turn.
pub(super) const STRETCH: usize = 256;

/// Pointers to the parts of an activation row.
#[derive(Clone, Copy)]
pub(super) struct XRow {
    pub(super) quants: *const i8,
    /// One scale per 16 values.
    pub(super) scales: *const f32,
    /// Sums over 16 values for formats with a minimum per 16 columns, over 32 for the others.
    pub(super) sums: *const f32,
    /// Sums over 16 quants, of the first and of the second pair of each four.
    pub(super) pair_sums: *const [i16; 2],
}

impl XRow {
    pub(super) fn new<F: Format>(x: &QuantizedRow<'_>) -> Self {
        let sums = if F::MINS == 2 { x.half_sums } else { x.block_sums };
        Self {
            quants: x.quants.as_ptr(),
            scales: x.scales.as_ptr(),
            sums: sums.as_ptr(),
            pair_sums: x.pair_sums.as_ptr(),
        }
    }

    /// The row without its first `g` groups.
    ///
    /// # Safety
    /// The row has that many groups.
    #[inline]
    pub(super) unsafe fn skip<F: Format>(self, g: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Self {
                quants: self.quants.add(g * GROUP_LEN),
                scales: self.scales.add(2 * g),
                sums: self.sums.add(if F::MINS == 2 { 2 * g } else { g }),
                pair_sums: self.pair_sums.add(2 * g),
            }
        }
    }
}

/// The same columns of several activation rows, with a stride.
#[derive(Clone, Copy)]
pub(super) struct XRows {
    first: XRow,
    stride: usize, // bytes
}

impl XRows {
    /// Some columns of the rows from row `first` on; there must be such a row.
    pub(super) fn new<F: Format>(x: &QuantizedRows, first: usize, cols: Range<usize>) -> Self {
        Self { first: XRow::new::<F>(&x.row(first).slice_cols(cols)), stride: x.row_stride() }
    }

    /// The `T` rows from the `i`-th on. Pointers of rows past the last one must not be read.
    #[inline]
    pub(super) fn tile<const T: usize>(&self, i: usize) -> [XRow; T] {
        std::array::from_fn(|t| {
            let XRow { quants, scales, sums, pair_sums } = self.first;
            let at = (i + t) * self.stride;
            XRow {
                quants: quants.wrapping_byte_add(at),
                scales: scales.wrapping_byte_add(at),
                sums: sums.wrapping_byte_add(at),
                pair_sums: pair_sums.wrapping_byte_add(at),
            }
        })
    }
}
