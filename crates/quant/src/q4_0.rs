//! Q4_0: 32 elements of 4 bits and one scale.
//!
//! Element `i` is `d * (q[i] - 8)`. Layout after ggml's `block_q4_0`.

use bytemuck::{Pod, Zeroable};

use crate::block::{Block, Quantize};
use crate::half_bytes::{f16_to_f32, f32_to_f16};
use crate::range::signed_peak;
/// A block of Q4_0.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ4_0 {
    /// Scale, binary16.
    pub d: [u8; 2],
    /// Levels: elements 0 to 15 in the low nibbles, 16 to 31 in the high ones.
    pub qs: [u8; 16],
}

impl BlockQ4_0 {
    /// The scale.
    #[inline]
    pub fn d(&self) -> f32 {
        f16_to_f32(self.d)
    }
}

impl Block for BlockQ4_0 {
    const LEN: usize = 32;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d();
        let (lo, hi) = out[..Self::LEN].split_at_mut(16);
        for i in 0..16 {
            lo[i] = d * f32::from((self.qs[i] & 0x0f) as i8 - 8);
            hi[i] = d * f32::from((self.qs[i] >> 4) as i8 - 8);
        }
    }
}

impl Quantize for BlockQ4_0 {
    fn quantize(values: &[f32]) -> Self {
        // The value of largest magnitude falls on level 0, whichever its sign.
        let d = signed_peak(&values[..Self::LEN]) / -8.0;
        let inv_d = if d == 0.0 { 0.0 } else { 1.0 / d };
        let level = |x: f32| ((x * inv_d + 8.5) as u8).min(15);
        let mut block = Self { d: f32_to_f16(d), ..Self::zeroed() };
        for i in 0..16 {
            let (lo, hi) = (level(values[i]), level(values[i + 16]));
            block.qs[i] = lo & 0x0f | hi << 4;
        }
        block
    }
}
