//! What the vector kernels read: streams of packed weights, and activation rows by
//! pointers, whose lengths were checked before.

use std::ops::Range;

use super::GROUP_LEN;
use super::format::Format;
use crate::quantize::{QuantizedRow, QuantizedRows};

/// How far ahead of each of several streams memory is fetched into the nearest cache, in bytes.
pub(super) const PREFETCH_BYTES: usize = 2048;

/// Columns that a stream reads before it is the next one's turn.
pub(super) const STRETCH: usize = 256;

/// An activation row as the kernels read it.
#[derive(Clone, Copy)]
pub(super) struct XRow {
    pub(super) quants: *const i8,
    /// Of 16 values.
    pub(super) scales: *const f32,
    /// Sums of 16 values for formats with minimums of 16 columns, of 32 for the others.
    pub(super) sums: *const f32,
    /// Sums of the pairs of 16 quants.
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

    /// The row from group `g` on.
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

/// The same columns of several activation rows, which lie equally far apart.
#[derive(Clone, Copy)]
pub(super) struct XRows {
    first: XRow,
    stride: usize, // bytes
}

impl XRows {
    /// Columns of the rows from row `first` on, which is there.
    pub(super) fn new<F: Format>(x: &QuantizedRows, first: usize, cols: Range<usize>) -> Self {
        Self { first: XRow::new::<F>(&x.row(first).slice_cols(cols)), stride: x.row_stride() }
    }

    /// `T` rows from the `i`-th of these on. The pointers of rows that are not there lead nowhere.
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
