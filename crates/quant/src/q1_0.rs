//! Q1_0: 128 elements of one sign bit each, and one scale (1.125 bits per element).
//!
//! Element `i` is `d` where its bit is set, else `-d`. Layout after ggml's `block_q1_0`.

use bytemuck::{Pod, Zeroable};

use crate::block::{Block, Quantize};
use crate::half_bytes::{f16_to_f32, f32_to_f16};

/// A block of Q1_0.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ1_0 {
    /// Scale, binary16.
    pub d: [u8; 2],
    /// Element `i` is bit `i % 8` of byte `i / 8`.
    pub qs: [u8; 16],
}

impl BlockQ1_0 {
    /// The scale.
    #[inline]
    pub fn d(&self) -> f32 {
        f16_to_f32(self.d)
    }
}

impl Block for BlockQ1_0 {
    const LEN: usize = 128;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d();
        for (out, q) in out[..Self::LEN].chunks_exact_mut(8).zip(self.qs) {
            for (i, out) in out.iter_mut().enumerate() {
                *out = if q >> i & 1 == 1 { d } else { -d };
            }
        }
    }
}

impl Quantize for BlockQ1_0 {
    fn quantize(values: &[f32]) -> Self {
        let values = &values[..Self::LEN];
        // The mean magnitude is the scale of least squares.
        let sum: f32 = values.iter().map(|v| v.abs()).sum();
        let mut block = Self { d: f32_to_f16(sum / Self::LEN as f32), ..Self::zeroed() };
        for (i, x) in values.iter().enumerate() {
            block.qs[i / 8] |= u8::from(*x >= 0.0) << (i % 8);
        }
        block
    }
}
