//! TQ2_0: 256 elements of -1, 0 or 1 in 2 bits each, and one scale (2.0625 bits per element).
//!
//! Element `i` is `d * (q[i] - 1)`. Layout after ggml's `block_tq2_0`.

use bytemuck::{Pod, Zeroable};

use crate::block::{Block, Quantize};
use crate::half_bytes::{f16_to_f32, f32_to_f16};
use crate::ternary_search::{fit_ternary, ternary_level};

/// A block of TQ2_0.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockTQ2_0 {
    /// Levels: of 128 elements, number `32 * k + l` lies in bits `2 * k` of byte `l` of 32.
    pub qs: [u8; 64],
    /// Scale, binary16.
    pub d: [u8; 2],
}

impl BlockTQ2_0 {
    /// The scale.
    #[inline]
    pub fn d(&self) -> f32 {
        f16_to_f32(self.d)
    }
}

impl Block for BlockTQ2_0 {
    const LEN: usize = 256;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d();
        for (j, out) in out[..Self::LEN].chunks_exact_mut(32).enumerate() {
            for (out, q) in out.iter_mut().zip(&self.qs[32 * (j / 4)..][..32]) {
                *out = d * f32::from((q >> (2 * (j % 4)) & 3) as i8 - 1);
            }
        }
    }
}

impl Quantize for BlockTQ2_0 {
    fn quantize(values: &[f32]) -> Self {
        let values = &values[..Self::LEN];
        let mut block = Self { d: f32_to_f16(fit_ternary(values)), ..Self::zeroed() };
        let d = block.d();
        for (j, values) in values.chunks_exact(32).enumerate() {
            for (q, x) in block.qs[32 * (j / 4)..][..32].iter_mut().zip(values) {
                *q |= ternary_level(*x, d) << (2 * (j % 4));
            }
        }
        block
    }
}
