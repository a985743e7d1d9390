//! IQ2_S: 256 elements in 32 points of 8 with all signs, and 16 sub-blocks with 4-bit scales
//! (2.5625 bits per element).
//!
//! Element `i` of a sub-block is `(d * (0.5 + scale) * 0.25) * magnitude`, with its sign. Layout
//! after ggml's `block_iq2_s`.

use bytemuck::{Pod, Zeroable};

use crate::block::Block;
use crate::codebook::{iq2_s, write_signed};
use crate::half_bytes::f16_to_f32;

/// A block of IQ2_S.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockIQ2S {
    /// Scale of the scales, binary16.
    pub d: [u8; 2],
    /// Bits 0 to 7 of the points' indices.
    pub qs: [u8; 32],
    /// Signs: element `i` is bit `i % 8` of byte `i / 8`, set for negative ones.
    pub signs: [u8; 32],
    /// Bits 8 and 9 of the points' indices: point `i` in bits `2 * (i % 4)` of byte `i / 4`.
    pub qh: [u8; 8],
    /// Scales of 16 elements: even sub-blocks in the low nibbles.
    pub scales: [u8; 8],
}

impl BlockIQ2S {
    /// The super-block's scale.
    #[inline]
    pub fn d(&self) -> f32 {
        f16_to_f32(self.d)
    }
}

impl Block for BlockIQ2S {
    const LEN: usize = 256;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d();
        for (i, out) in out[..Self::LEN].chunks_exact_mut(8).enumerate() {
            let scale = self.scales[i / 4] >> (4 * (i / 2 % 2)) & 0x0f;
            let scale = d * (0.5 + f32::from(scale)) * 0.25;
            let high = u16::from(self.qh[i / 4] >> (2 * (i % 4)) & 3);
            let point = iq2_s(u16::from(self.qs[i]) | high << 8);
            write_signed(out, scale, &point, self.signs[i]);
        }
    }
}
