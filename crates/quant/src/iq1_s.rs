//! IQ1_S: 256 elements in 32 points of 8, and 8 sub-blocks with 3-bit scales and a shift (1.5625
//! bits per element).
//!
//! Element `i` of a sub-block is `(d * (2 * scale + 1)) * (t + shift)` with `t` of -1, 0 or 1.
//! Layout after ggml's `block_iq1_s`.

use bytemuck::{Pod, Zeroable};

use crate::block::Block;
use crate::codebook::iq1;
use crate::half_bytes::f16_to_f32;

/// The magnitude of the shift of a point's elements.
pub(crate) const SHIFT: f32 = 0.125;

/// A block of IQ1_S.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockIQ1S {
    /// Scale of the scales, binary16.
    pub d: [u8; 2],
    /// Bits 0 to 7 of the points' indices.
    pub qs: [u8; 32],
    /// One little-endian word per 32 elements: bits 8 to 10 of the index of point `l` in the three bits from
    /// `3 * l` on, the scale in bits 12 to 14, and bit 15, which is set for a negative shift.
    pub qh: [[u8; 2]; 8],
}

impl BlockIQ1S {
    /// The super-block's scale.
    #[inline]
    pub fn d(&self) -> f32 {
        f16_to_f32(self.d)
    }
}

impl Block for BlockIQ1S {
    const LEN: usize = 256;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d();
        let blocks = out[..Self::LEN].chunks_exact_mut(32).zip(self.qs.chunks_exact(4));
        for ((out, qs), word) in blocks.zip(self.qh) {
            let word = u16::from_le_bytes(word);
            let scale = d * f32::from(2 * (word >> 12 & 7) + 1);
            let shift = if word >> 15 == 1 { -SHIFT } else { SHIFT };
            for (l, (out, low)) in out.chunks_exact_mut(8).zip(qs).enumerate() {
                let point = iq1(u16::from(*low) | (word >> (3 * l) & 7) << 8);
                for (out, t) in out.iter_mut().zip(point) {
                    *out = scale * (f32::from(t) + shift);
                }
            }
        }
    }
}
