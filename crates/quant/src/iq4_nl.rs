//! IQ4_NL: 32 elements of 4 bits, levels of a codebook, and one scale (4.5 bits per element).
//!
//! Element `i` is `d * IQ4[q[i]]`. Layout after ggml's `block_iq4_nl`.

use bytemuck::{Pod, Zeroable};

use crate::block::{Block, Quantize};
use crate::codebook::IQ4;
use crate::codebook_search::{fit_iq4, iq4_levels};
use crate::half_bytes::{f16_to_f32, f32_to_f16};

/// A block of IQ4_NL.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockIQ4NL {
    /// Scale, binary16.
    pub d: [u8; 2],
    /// Levels: elements 0 to 15 in the low nibbles, 16 to 31 in the high ones.
    pub qs: [u8; 16],
}

impl BlockIQ4NL {
    /// The scale.
    #[inline]
    pub fn d(&self) -> f32 {
        f16_to_f32(self.d)
    }
}

impl Block for BlockIQ4NL {
    const LEN: usize = 32;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d();
        let (lo, hi) = out[..Self::LEN].split_at_mut(16);
        for i in 0..16 {
            lo[i] = d * f32::from(IQ4[usize::from(self.qs[i] & 0x0f)]);
            hi[i] = d * f32::from(IQ4[usize::from(self.qs[i] >> 4)]);
        }
    }
}

impl Quantize for BlockIQ4NL {
    fn quantize(values: &[f32]) -> Self {
        let values = &values[..Self::LEN];
        let mut block = Self { d: f32_to_f16(fit_iq4(values)), ..Self::zeroed() };
        let mut levels = [0u8; 32];
        iq4_levels(values, block.d(), &mut levels);
        for (i, q) in block.qs.iter_mut().enumerate() {
            *q = levels[i] | levels[i + 16] << 4;
        }
        block
    }
}
