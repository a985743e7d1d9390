//! IQ2_XS: 256 elements in 32 points of 8 with stored signs, and 16 sub-blocks with 4-bit scales
//! (2.3125 bits per element).
//!
//! Element `i` of a sub-block is `(d * (0.5 + scale) * 0.25) * magnitude`, with its sign. Layout
//! after ggml's `block_iq2_xs`.

use bytemuck::{Pod, Zeroable};

use crate::block::Block;
use crate::codebook::{even_signs, iq2_xs, write_signed};
use crate::half_bytes::f16_to_f32;

/// A block of IQ2_XS.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockIQ2XS {
    /// Scale of the scales, binary16.
    pub d: [u8; 2],
    /// One little-endian word per 8 elements: the point's index in bits 0 to 8, and 7 signs above.
    pub qs: [[u8; 2]; 32],
    /// Scales of 16 elements: even sub-blocks in the low nibbles.
    pub scales: [u8; 8],
}

impl BlockIQ2XS {
    /// The super-block's scale.
    #[inline]
    pub fn d(&self) -> f32 {
        f16_to_f32(self.d)
    }
}

impl Block for BlockIQ2XS {
    const LEN: usize = 256;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d();
        for (i, (out, word)) in out[..Self::LEN].chunks_exact_mut(8).zip(self.qs).enumerate() {
            let scale = self.scales[i / 4] >> (4 * (i / 2 % 2)) & 0x0f;
            let scale = d * (0.5 + f32::from(scale)) * 0.25;
            let word = u16::from_le_bytes(word);
            write_signed(out, scale, &iq2_xs(word & 0x1ff), even_signs((word >> 9) as u8));
        }
    }
}
