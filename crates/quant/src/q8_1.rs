//! Q8_1: 32 elements of 8 bits, one scale and the scaled sum.
//!
//! Element `i` is `d * qs[i]`. The sum serves dot products with types that have a
//! minimum; it takes no part in the values. Layout after ggml's `block_q8_1`.

use bytemuck::{Pod, Zeroable};

use crate::block::{Block, Quantize};
use crate::half_bytes::{f16_to_f32, f32_to_f16};
use crate::range::peak;
/// A block of Q8_1.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ8_1 {
    /// Scale, binary16.
    pub d: [u8; 2],
    /// `d * sum(qs)`, binary16.
    pub s: [u8; 2],
    /// Levels, -127 to 127 when made by `quantize`.
    pub qs: [i8; 32],
}

impl BlockQ8_1 {
    /// The scale.
    #[inline]
    pub fn d(&self) -> f32 {
        f16_to_f32(self.d)
    }

    /// The scaled sum, `d * sum(qs)`.
    #[inline]
    pub fn s(&self) -> f32 {
        f16_to_f32(self.s)
    }
}

impl Block for BlockQ8_1 {
    const LEN: usize = 32;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d();
        for (out, q) in out[..Self::LEN].iter_mut().zip(&self.qs) {
            *out = d * f32::from(*q);
        }
    }
}

impl Quantize for BlockQ8_1 {
    fn quantize(values: &[f32]) -> Self {
        let values = &values[..Self::LEN];
        let d = peak(values) / 127.0;
        let inv_d = if d == 0.0 { 0.0 } else { 1.0 / d };
        let mut block = Self { d: f32_to_f16(d), ..Self::zeroed() };
        for (q, x) in block.qs.iter_mut().zip(values) {
            *q = (x * inv_d).round() as i8;
        }
        let sum: i32 = block.qs.iter().map(|q| i32::from(*q)).sum();
        block.s = f32_to_f16(sum as f32 * d);
        block
    }
}
