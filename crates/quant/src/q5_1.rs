//! Q5_1: 32 elements of 5 bits, one scale and one minimum.
//!
//! Element `i` is `d * q[i] + m`. Layout after ggml's `block_q5_1`.

use bytemuck::{Pod, Zeroable};

use crate::block::{Block, Quantize};
use crate::half_bytes::{f16_to_f32, f32_to_f16};
use crate::range::min_max;
/// A block of Q5_1.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ5_1 {
    /// Scale, binary16.
    pub d: [u8; 2],
    /// Value of level 0, binary16.
    pub m: [u8; 2],
    /// Bit 4 of element `i` is bit `i` of this little-endian word.
    pub qh: [u8; 4],
    /// Bits 0 to 3: elements 0 to 15 in the low nibbles, 16 to 31 in the high ones.
    pub qs: [u8; 16],
}

impl BlockQ5_1 {
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

impl Block for BlockQ5_1 {
    const LEN: usize = 32;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, m) = (self.d(), self.m());
        let qh = u32::from_le_bytes(self.qh);
        let (lo, hi) = out[..Self::LEN].split_at_mut(16);
        for i in 0..16 {
            let h_lo = ((qh >> i) << 4) as u8 & 0x10;
            let h_hi = (qh >> (i + 12)) as u8 & 0x10;
            lo[i] = d * f32::from(self.qs[i] & 0x0f | h_lo) + m;
            hi[i] = d * f32::from(self.qs[i] >> 4 | h_hi) + m;
        }
    }
}

impl Quantize for BlockQ5_1 {
    fn quantize(values: &[f32]) -> Self {
        let (min, max) = min_max(&values[..Self::LEN]);
        let d = (max - min) / 31.0;
        let inv_d = if d == 0.0 { 0.0 } else { 1.0 / d };
        let level = |x: f32| (((x - min) * inv_d + 0.5) as u8).min(31);
        let mut block = Self { d: f32_to_f16(d), m: f32_to_f16(min), ..Self::zeroed() };
        let mut qh = 0u32;
        for i in 0..16 {
            let (lo, hi) = (level(values[i]), level(values[i + 16]));
            block.qs[i] = lo & 0x0f | hi << 4;
            qh |= u32::from(lo >> 4) << i | u32::from(hi >> 4) << (i + 16);
        }
        block.qh = qh.to_le_bytes();
        block
    }
}
