//! Q2_0: 64 elements of 2 bits and one scale (2.25 bits per element).
//!
//! Element `i` is `d * (q[i] - 1)`, so -1 to 2 times the scale. Layout after ggml's `block_q2_0`.

use bytemuck::{Pod, Zeroable};

use crate::block::{Block, Quantize};
use crate::half_bytes::{f16_to_f32, f32_to_f16};
use crate::k_search::{fit_symmetric, symmetric_levels};

/// A block of Q2_0.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ2_0 {
    /// Scale, binary16.
    pub d: [u8; 2],
    /// Levels: element `i` in bits `2 * (i % 4)` of byte `i / 4`.
    pub qs: [u8; 16],
}

impl BlockQ2_0 {
    /// The scale.
    #[inline]
    pub fn d(&self) -> f32 {
        f16_to_f32(self.d)
    }
}

impl Block for BlockQ2_0 {
    const LEN: usize = 64;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d();
        for (i, out) in out[..Self::LEN].iter_mut().enumerate() {
            *out = d * f32::from((self.qs[i / 4] >> (2 * (i % 4)) & 3) as i8 - 1);
        }
    }
}

impl Quantize for BlockQ2_0 {
    fn quantize(values: &[f32]) -> Self {
        let values = &values[..Self::LEN];
        // The search's levels are -2 to 1; with the opposite scale these are -1 to 2.
        let scale = fit_symmetric(values, 2);
        let mut block = Self { d: f32_to_f16(-scale), ..Self::zeroed() };
        let mut levels = [0u8; 64];
        symmetric_levels(values, -block.d(), 2, &mut levels);
        for (i, level) in levels.into_iter().enumerate() {
            block.qs[i / 4] |= (3 - level) << (2 * (i % 4));
        }
        block
    }
}
