//! Q2_K: 256 elements of 2 bits in 16 sub-blocks with 4-bit scales and minimums.
//!
//! Element `i` of sub-block `j` is `(d * scale[j]) * q - dmin * min[j]`. Layout
//! after ggml's `block_q2_K`.

use bytemuck::{Pod, Zeroable};

use crate::block::{Block, Quantize};
use crate::half_bytes::f16_to_f32;
use crate::k_search::{affine_levels, affine_scales};

/// A block of Q2_K.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ2K {
    /// Per sub-block of 16: scale in the low nibble, minimum in the high one.
    pub scales: [u8; 16],
    /// Levels: of 128 elements, number `32 * k + l` lies in bits `2 * k` of byte `l` of 32.
    pub qs: [u8; 64],
    /// Scale of the scales, binary16.
    pub d: [u8; 2],
    /// Scale of the minimums, binary16.
    pub dmin: [u8; 2],
}

impl BlockQ2K {
    /// The super-block's scale.
    #[inline]
    pub fn d(&self) -> f32 {
        f16_to_f32(self.d)
    }

    /// The super-block's scale of minimums.
    #[inline]
    pub fn dmin(&self) -> f32 {
        f16_to_f32(self.dmin)
    }
}

impl Block for BlockQ2K {
    const LEN: usize = 256;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, dmin) = (self.d(), self.dmin());
        for (j, out) in out[..Self::LEN].chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(self.scales[j] & 0x0f);
            let min = dmin * f32::from(self.scales[j] >> 4);
            let qs = &self.qs[32 * (j / 8) + 16 * (j % 2)..][..16];
            let shift = 2 * (j % 8 / 2);
            for (out, q) in out.iter_mut().zip(qs) {
                *out = scale * f32::from(q >> shift & 3) - min;
            }
        }
    }
}

impl Quantize for BlockQ2K {
    fn quantize(values: &[f32]) -> Self {
        let values = &values[..Self::LEN];
        let (d, dmin, scales, mins) = affine_scales::<16>(values, 15, 3);
        let mut block = Self { d, dmin, ..Self::zeroed() };
        let mut levels = [0u8; 16];
        for (j, values) in values.chunks_exact(16).enumerate() {
            let scale = block.d() * f32::from(scales[j]);
            affine_levels(values, scale, block.dmin() * f32::from(mins[j]), 3, &mut levels);
            block.scales[j] = scales[j] | mins[j] << 4;
            let qs = &mut block.qs[32 * (j / 8) + 16 * (j % 2)..][..16];
            for (q, level) in qs.iter_mut().zip(levels) {
                *q |= level << (2 * (j % 8 / 2));
            }
        }
        block
    }
}
