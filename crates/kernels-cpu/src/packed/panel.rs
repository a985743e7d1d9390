//! Panels: some columns of sixteen rows, expanded to one byte per quant and to factors and scales in the
//! form that the kernels load, for products with many activation rows.

use super::{GROUP_LEN, PACKED_ROWS};

/// 32 columns of sixteen rows.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct PanelGroup {
    /// Quants, signed if the type's are.
    pub(crate) quants: [[[u8; 4]; PACKED_ROWS]; GROUP_LEN / 4], // [word][row][column]
    pub(crate) scales: GroupScales,
}

/// The scales of 32 columns of sixteen rows, see [`Format`](super::format::Format). Fields that the format
/// lacks are not read.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct GroupScales {
    /// The block's scale, the same in all its groups.
    pub(crate) scale: [f32; PACKED_ROWS],
    pub(crate) min_scale: [f32; PACKED_ROWS],
    pub(crate) mins: [[f32; PACKED_ROWS]; 2],
    /// Each factor twice, for products with pairs of sums.
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
