//! A few columns of sixteen rows, expanded so that many activation rows can be
//! multiplied with them: a byte a quant, factors ready for the multiplication.

use super::{GROUP_LEN, PACKED_ROWS};

/// 32 columns of sixteen rows.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct PanelGroup {
    /// Unsigned, or signed where the type's are.
    pub(crate) quants: [[[u8; 4]; PACKED_ROWS]; GROUP_LEN / 4], // [word][row][column]
    pub(crate) scales: GroupScales,
}

/// The scales of 32 columns of sixteen rows, see [`Format`](super::format::Format). What a
/// format does not have is not read.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct GroupScales {
    /// Of the block. The same in all its groups.
    pub(crate) scale: [f32; PACKED_ROWS],
    pub(crate) min_scale: [f32; PACKED_ROWS],
    pub(crate) mins: [[f32; PACKED_ROWS]; 2],
    /// Each factor twice, for sums of pairs.
    pub(crate) factors: [[[i16; 2]; PACKED_ROWS]; 2],
}

impl GroupScales {
    pub(crate) const ZERO: Self = Self {
        scale: [0.0; 16],
        min_scale: [0.0; 16],
        mins: [[0.0; 16]; 2],
        factors: [[[0; 2]; 16]; 2],
    };
}

impl PanelGroup {
    pub(crate) const ZERO: Self = Self { quants: [[[0; 4]; 16]; 8], scales: GroupScales::ZERO };
}
