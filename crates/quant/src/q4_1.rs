//! Q4_1: 32 elements of 4 bits, one scale and one minimum.
//!
//! Element `i` is `d * q[i] + m`. Layout after ggml's `block_q4_1`.

use bytemuck::{Pod, Zeroable};

use crate::block::{Block, Quantize};
use crate::half_bytes::{f16_to_f32, f32_to_f16};
use crate::range::min_max;
/// A block of Q4_1.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ4_1 {
    /// Scale, binary16.
    pub d: [u8; 2],
    /// Value of level 0, binary16.
    pub m: [u8; 2],
    /// Levels: elements 0 to 15 in the low nibbles, 16 to 31 in the high ones.
    pub qs: [u8; 16],
}

impl BlockQ4_1 {
    /// The scale.
    #[inline]
    pub fn d(&self) -> f32 {
        f16_to_f32(self.d)
    }

    /// The value of level 0.
    #[inline]
    pub fn m(&self) -> f32 {
        f16_to_f32(self.m)
    }
}

impl Block for BlockQ4_1 {
    const LEN: usize = 32;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, m) = (self.d(), self.m());
        let (lo, hi) = out[..Self::LEN].split_at_mut(16);
        for i in 0..16 {
            lo[i] = d * f32::from(self.qs[i] & 0x0f) + m;
            hi[i] = d * f32::from(self.qs[i] >> 4) + m;
        }
    }
}

impl Quantize for BlockQ4_1 {
    fn quantize(values: &[f32]) -> Self {
        let (min, max) = min_max(&values[..Self::LEN]);
        let d = (max - min) / 15.0;
        let inv_d = if d == 0.0 { 0.0 } else { 1.0 / d };
        let level = |x: f32| (((x - min) * inv_d + 0.5) as u8).min(15);
        let mut block = Self { d: f32_to_f16(d), m: f32_to_f16(min), ..Self::zeroed() };
        for i in 0..16 {
            let (lo, hi) = (level(values[i]), level(values[i + 16]));
            block.qs[i] = lo & 0x0f | hi << 4;
        }
        block
    }
}
