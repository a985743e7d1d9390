//! MXFP4: 32 elements of FP4 (`E2M1`) with a power of two as scale (4.25 bits per element).
//!
//! Element `i` is `e8m0_half(e) * FP4[q[i]]`. The layout is that of ggml's `block_mxfp4`, and the number
//! formats those of the OCP Microscaling Formats specification 1.0.

use bytemuck::{Pod, Zeroable};

use crate::block::{Block, Quantize};
use crate::codebook::FP4;
use crate::codebook_search::{fp4_levels, fp4_scale};
use crate::range::peak;
use crate::small_floats::e8m0_half;

/// A block of MXFP4.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockMXFP4 {
    /// The scale's exponent (`E8M0`).
    pub e: u8,
    /// Levels: elements 0 to 15 in the low nibbles, 16 to 31 in the high ones.
    pub qs: [u8; 16],
}

impl BlockMXFP4 {
    /// Half of the scale, for the doubled values of the codebook.
    #[inline]
    pub fn half_scale(&self) -> f32 {
        e8m0_half(self.e)
    }
}

impl Block for BlockMXFP4 {
    const LEN: usize = 32;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.half_scale();
        let (lo, hi) = out[..Self::LEN].split_at_mut(16);
        for i in 0..16 {
            lo[i] = d * f32::from(FP4[usize::from(self.qs[i] & 0x0f)]);
            hi[i] = d * f32::from(FP4[usize::from(self.qs[i] >> 4)]);
        }
    }
}

impl Quantize for BlockMXFP4 {
    fn quantize(values: &[f32]) -> Self {
        let values = &values[..Self::LEN];
        // The largest value scales to 4..8, and 6 can be stored. The next larger power clips less, the
        // next smaller one rounds less. 255 is excluded, because it means NaN in the specification.
        let exponent = (peak(values).to_bits() >> 23) as i32 - 2;
        let candidates = [0, 1, -1, 2].map(|step| (exponent + step).clamp(0, 254) as u8);
        let e = fp4_scale(values, candidates.into_iter(), e8m0_half);
        let mut block = Self { e, ..Self::zeroed() };
        let mut levels = [0u8; 32];
        fp4_levels(values, block.half_scale(), &mut levels);
        for (i, q) in block.qs.iter_mut().enumerate() {
            *q = levels[i] | levels[i + 16] << 4;
        }
        block
    }
}
