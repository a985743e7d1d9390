//! F8_0: 64 elements of FP8 (`E4M3`) and one scale (8.5 bits per element).
//!
//! Element `i` is `d * e4m3(qs[i])`. No file has such blocks: FP8 matrices with a scale per tensor, row or
//! tile are converted to them when they are read. A block is within one tile, and has the tile's scale.

use bytemuck::{Pod, Zeroable};

use crate::block::{Block, Quantize};
use crate::range::peak;
use crate::small_floats::{E4M3_MAX, e4m3, to_e4m3};

/// A block of F8_0.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockF8_0 {
    /// Scale, binary32.
    pub d: [u8; 4],
    /// Numbers in E4M3, see [`e4m3`].
    pub qs: [u8; 64],
}

impl BlockF8_0 {
    /// The scale.
    #[inline]
    pub fn d(&self) -> f32 {
        f32::from_le_bytes(self.d)
    }
}

impl Block for BlockF8_0 {
    const LEN: usize = 64;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d();
        for (out, q) in out[..Self::LEN].iter_mut().zip(self.qs) {
            *out = d * e4m3(q);
        }
    }
}

impl Quantize for BlockF8_0 {
    fn quantize(values: &[f32]) -> Self {
        let values = &values[..Self::LEN];
        let d = peak(values).abs() / E4M3_MAX;
        let mut block = Self { d: d.to_le_bytes(), ..Self::zeroed() };
        for (q, value) in block.qs.iter_mut().zip(values) {
            *q = if d == 0.0 { 0 } else { to_e4m3(value / d) };
        }
        block
    }
}
