//! The warp-group products that a warp has issued and not waited for.

use crate::program::lanes::LANES;

/// A product in flight.
#[derive(Debug, Clone)]
pub(super) struct Queued {
    pub(super) at: usize,
    pub(super) a: Option<Vec<[u32; LANES]>>,
    pub(super) a_at: u64,
    pub(super) b_at: u64,
    pub(super) adds: bool,
    pub(super) group: u32,
}

/// The products that a warp has issued.
#[derive(Debug, Default)]
pub(super) struct Products {
    pub(super) queue: Vec<Queued>,
    pub(super) groups: u32,
    /// A hash of all issued instructions in order.
    pub(super) trace: u64,
}

impl Products {
    pub(super) fn note(&mut self, number: u64) {
        self.trace = (self.trace.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
