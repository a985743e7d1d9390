//! IQ3_XXS: 256 elements in 64 points of 4 with stored signs, and 8 sub-blocks with 4-bit scales
//! (3.0625 bits per element).
//!
//! Element `i` of a sub-block is `(d * (0.5 + scale) * 0.5) * magnitude`, with its sign. Layout
//! after ggml's `block_iq3_xxs`.

use bytemuck::{Pod, Zeroable};

use crate::block::Block;
use crate::codebook::{even_signs, iq3_xxs, write_signed};
use crate::half_bytes::f16_to_f32;

/// A block of IQ3_XXS.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockIQ3XXS {
    /// Scale of the scales, binary16.
    pub d: [u8; 2],
    /// Indices of the points.
    pub qs: [u8; 64],
    /// One little-endian word per 32 elements: the signs of the `l`-th 8 elements in the 7 bits from `7 * l`
    /// on, and the scale in the upper 4 bits.
    pub scales: [[u8; 4]; 8],
}

impl BlockIQ3XXS {
    /// The super-block's scale.
    #[inline]
    pub fn d(&self) -> f32 {
        f16_to_f32(self.d)
    }
}

impl Block for BlockIQ3XXS {
    const LEN: usize = 256;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d();
        let blocks = out[..Self::LEN].chunks_exact_mut(32).zip(self.qs.chunks_exact(8));
        for ((out, points), word) in blocks.zip(self.scales) {
            let word = u32::from_le_bytes(word);
            let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
            for (i, (out, point)) in out.chunks_exact_mut(4).zip(points).enumerate() {
                let signs = even_signs((word >> (7 * (i / 2))) as u8);
                write_signed(out, scale, &iq3_xxs(*point), signs >> (4 * (i % 2)));
            }
        }
    }
}
