//! Q4_Z: 32 elements of 4 bits, one scale and one zero point (5 bits per element).
//!
//! Element `i` is `d * (q[i] - z)`. No file has such blocks: GPTQ and AWQ matrices with zero points are
//! converted to them. Q4_1 would need the product `d * z` in binary16, which cannot hold it exactly.

use bytemuck::{Pod, Zeroable};

use crate::block::{Block, Quantize};
use crate::half_bytes::{f16_to_f32, f32_to_f16};
use crate::range::min_max;

/// A block of Q4_Z.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ4Z {
    /// Scale, binary16.
    pub d: [u8; 2],
    /// The level that represents zero, binary16.
    pub z: [u8; 2],
    /// Levels: elements 0 to 15 in the low nibbles, 16 to 31 in the high ones.
    pub qs: [u8; 16],
}

impl BlockQ4Z {
    /// The scale.
    #[inline]
    pub fn d(&self) -> f32 {
        f16_to_f32(self.d)
    }

    /// The level that represents zero.
    #[inline]
    pub fn z(&self) -> f32 {
        f16_to_f32(self.z)
    }
}

impl Block for BlockQ4Z {
    const LEN: usize = 32;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, z) = (self.d(), self.z());
        let (lo, hi) = out[..Self::LEN].split_at_mut(16);
        for i in 0..16 {
            lo[i] = d * (f32::from(self.qs[i] & 0x0f) - z);
            hi[i] = d * (f32::from(self.qs[i] >> 4) - z);
        }
    }
}

impl Quantize for BlockQ4Z {
    fn quantize(values: &[f32]) -> Self {
        let (min, max) = min_max(&values[..Self::LEN]);
        // The range includes zero.
        let (min, max) = (min.min(0.0), max.max(0.0));
        let d = (max - min) / 15.0;
        let inv_d = if d == 0.0 { 0.0 } else { 1.0 / d };
        let z = (-min * inv_d).round();
        let level = |x: f32| ((x * inv_d + z).round() as u8).min(15);
        let mut block = Self { d: f32_to_f16(d), z: f32_to_f16(z), ..Self::zeroed() };
        for i in 0..16 {
            let (lo, hi) = (level(values[i]), level(values[i + 16]));
            block.qs[i] = lo & 0x0f | hi << 4;
        }
        block
    }
}
