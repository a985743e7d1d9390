//! IQ2_XXS: 256 elements in 32 points of 8 with stored signs, and 8 sub-blocks with 4-bit scales
//! (2.0625 bits per element).
//!
//! Element `i` of a sub-block is `(d * (0.5 + scale) * 0.25) * magnitude`, with its sign. Layout
//! after ggml's `block_iq2_xxs`.

use bytemuck::{Pod, Zeroable};

use crate::block::Block;
use crate::codebook::{even_signs, iq2_xxs, write_signed};
use crate::half_bytes::f16_to_f32;

/// A block of IQ2_XXS.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockIQ2XXS {
    /// Scale of the scales, binary16.
    pub d: [u8; 2],
    /// Per 32 elements: the indices of 4 points, then a little-endian word with the signs of point `l` in the
    /// 7 bits from `7 * l` on, and the scale in its upper 4 bits.
    pub qs: [[u8; 8]; 8],
}

impl BlockIQ2XXS {
    /// The super-block's scale.
    #[inline]
    pub fn d(&self) -> f32 {
        f16_to_f32(self.d)
    }
}

impl Block for BlockIQ2XXS {
    const LEN: usize = 256;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d();
        for (out, qs) in out[..Self::LEN].chunks_exact_mut(32).zip(&self.qs) {
            let [points @ .., a, b, c, e] = *qs;
            let word = u32::from_le_bytes([a, b, c, e]);
            let scale = d * (0.5 + (word >> 28) as f32) * 0.25;
            for (l, (out, point)) in out.chunks_exact_mut(8).zip(points).enumerate() {
                let signs = even_signs((word >> (7 * l)) as u8);
                write_signed(out, scale, &iq2_xxs(point), signs);
            }
        }
    }
}
