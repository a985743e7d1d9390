//! IQ3_S: 256 elements in 64 points of 4 with all signs, and 8 sub-blocks with 4-bit scales
//! (3.4375 bits per element).
//!
//! Element `i` of a sub-block is `(d * (1 + 2 * scale)) * magnitude`, with its sign. Layout after
//! ggml's `block_iq3_s`.

use bytemuck::{Pod, Zeroable};

use crate::block::Block;
use crate::codebook::{iq3_s, write_signed};
use crate::half_bytes::f16_to_f32;

/// A block of IQ3_S.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockIQ3S {
    /// Scale of the scales, binary16.
    pub d: [u8; 2],
    /// Bits 0 to 7 of the points' indices.
    pub qs: [u8; 64],
    /// Bit 8 of the points' indices: point `i` is bit `i % 8` of byte `i / 8`.
    pub qh: [u8; 8],
    /// Signs: element `i` is bit `i % 8` of byte `i / 8`, set for negative ones.
    pub signs: [u8; 32],
    /// Scales of 32 elements: even sub-blocks in the low nibbles.
    pub scales: [u8; 4],
}

impl BlockIQ3S {
    /// The super-block's scale.
    #[inline]
    pub fn d(&self) -> f32 {
        f16_to_f32(self.d)
    }
}

impl Block for BlockIQ3S {
    const LEN: usize = 256;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d();
        for (i, out) in out[..Self::LEN].chunks_exact_mut(4).enumerate() {
            let scale = self.scales[i / 16] >> (4 * (i / 8 % 2)) & 0x0f;
            let scale = d * (1.0 + 2.0 * f32::from(scale));
            let high = u16::from(self.qh[i / 8] >> (i % 8) & 1);
            let point = iq3_s(u16::from(self.qs[i]) | high << 8);
            write_signed(out, scale, &point, self.signs[i / 2] >> (4 * (i % 2)));
        }
    }
}
