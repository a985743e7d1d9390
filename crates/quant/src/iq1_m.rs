//! IQ1_M: 256 elements in 32 points of 8 with a shift each, and 16 sub-blocks with 3-bit scales
//! (1.75 bits per element).
//!
//! Element `i` of a sub-block is `(d * (2 * scale + 1)) * (t + shift)` with `t` of -1, 0 or 1.
//! Layout after ggml's `block_iq1_m`.

use bytemuck::{Pod, Zeroable};

use crate::block::Block;
use crate::codebook::iq1;
use crate::half_bytes::f16_to_f32;
use crate::iq1_s::SHIFT;

/// A block of IQ1_M.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockIQ1M {
    /// Bits 0 to 7 of the points' indices.
    pub qs: [u8; 32],
    /// One nibble per point, even points in the low nibbles: bits 8 to 10 of the index, and bit 3, which is
    /// set for a negative shift.
    pub qh: [u8; 16],
    /// Little-endian words: the scale of sub-block `j` is in the three bits from `3 * (j % 4)` on of word
    /// `j / 4`, and nibble `k` of the super-block's scale in the upper bits of word `k`.
    pub scales: [[u8; 2]; 4],
}

impl BlockIQ1M {
    /// The super-block's scale.
    #[inline]
    pub fn d(&self) -> f32 {
        let nibbles = self.scales.map(|word| u16::from(word[1] >> 4));
        let bits = nibbles.iter().rev().fold(0, |bits, nibble| bits << 4 | nibble);
        f16_to_f32(bits.to_le_bytes())
    }
}

impl Block for BlockIQ1M {
    const LEN: usize = 256;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d();
        for (i, out) in out[..Self::LEN].chunks_exact_mut(8).enumerate() {
            let word = u16::from_le_bytes(self.scales[i / 8]);
            let scale = d * f32::from(2 * (word >> (3 * (i / 2 % 4)) & 7) + 1);
            let high = u16::from(self.qh[i / 2] >> (4 * (i % 2)));
            let shift = if high & 8 == 8 { -SHIFT } else { SHIFT };
            let point = iq1(u16::from(self.qs[i]) | (high & 7) << 8);
            for (out, t) in out.iter_mut().zip(point) {
                *out = scale * (f32::from(t) + shift);
            }
        }
    }
}
