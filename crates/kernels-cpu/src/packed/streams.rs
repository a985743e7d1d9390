//! What the vector kernels read: streams of packed weights, and activation rows by
//! pointers, whose lengths were checked before.

use super::GROUP_LEN;
use super::format::Format;
use crate::quantize::QuantizedRow;

/// How far ahead of a stream memory is fetched, in bytes.
pub(super) const PREFETCH_BYTES: usize = 2048;

/// Columns that a stream reads before it is the next one's turn.
pub(super) const STRETCH: usize = 256;

/// An activation row as the kernels read it.
#[derive(Clone, Copy)]
pub(super) struct XRow {
    pub(super) quants: *const i8,
    pub(super) scales: *const f32,
    /// Sums of 32 values, or of 16 for formats with two halves.
    pub(super) sums: *const f32,
    /// Sums of 16 quants.
    pub(super) quant_sums: *const i16,
}

impl XRow {
    pub(super) const NONE: Self = Self {
        quants: std::ptr::null(),
        scales: std::ptr::null(),
        sums: std::ptr::null(),
        quant_sums: std::ptr::null(),
    };

    pub(super) fn new<F: Format>(x: &QuantizedRow<'_>) -> Self {
        let sums = if F::HALVES == 1 { x.block_sums } else { x.half_sums };
        Self {
            quants: x.quants.as_ptr(),
            scales: x.scales.as_ptr(),
            sums: sums.as_ptr(),
            quant_sums: x.sums.as_ptr(),
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
                scales: self.scales.add(g),
                sums: self.sums.add(g * F::HALVES),
                quant_sums: self.quant_sums.add(2 * g),
            }
        }
    }
}
