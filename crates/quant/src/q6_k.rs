//! Q6_K: 256 elements of 6 bits in 16 sub-blocks with 8-bit signed scales.
//!
//! Element `i` of sub-block `j` is `(d * scales[j]) * (q - 32)`. Layout after ggml's
//! `block_q6_K`.

use bytemuck::{Pod, Zeroable};

use crate::block::{Block, Quantize};
use crate::half_bytes::f16_to_f32;
use crate::k_search::{symmetric_levels, symmetric_scales};

/// A block of Q6_K.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ6K {
    /// Bits 0 to 3: of 128 elements, the first 64 lie in low nibbles, the others in high ones.
    pub ql: [u8; 128],
    /// Bits 4 and 5: of 128 elements, number `32 * k + l` lies in bits `2 * k` of byte `l` of 32.
    pub qh: [u8; 64],
    /// Scales of the sub-blocks of 16.
    pub scales: [i8; 16],
    /// Scale of the scales, binary16.
    pub d: [u8; 2],
}

impl BlockQ6K {
    /// The super-block's scale.
    #[inline]
    pub fn d(&self) -> f32 {
        f16_to_f32(self.d)
    }
}

impl Block for BlockQ6K {
    const LEN: usize = 256;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d();
        for (j, out) in out[..Self::LEN].chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(self.scales[j]);
            let ql = &self.ql[64 * (j / 8) + 16 * (j % 4)..][..16];
            let qh = &self.qh[32 * (j / 8) + 16 * (j % 2)..][..16];
            let (l_shift, h_shift) = (4 * (j % 8 / 4), 2 * (j % 8 / 2));
            for ((out, l), h) in out.iter_mut().zip(ql).zip(qh) {
                let q = (l >> l_shift & 0x0f | (h >> h_shift & 3) << 4) as i8 - 32;
                *out = scale * f32::from(q);
            }
        }
    }
}

impl Quantize for BlockQ6K {
    fn quantize(values: &[f32]) -> Self {
        let values = &values[..Self::LEN];
        let (d, scales) = symmetric_scales::<16>(values, 128, 32);
        let mut block = Self { d, ..Self::zeroed() };
        let mut levels = [0u8; 16];
        for (j, values) in values.chunks_exact(16).enumerate() {
            block.scales[j] = scales[j] as i8;
            symmetric_levels(values, block.d() * scales[j] as f32, 32, &mut levels);
            for (l, level) in levels.into_iter().enumerate() {
                block.ql[64 * (j / 8) + 16 * (j % 4) + l] |= (level & 0x0f) << (4 * (j % 8 / 4));
                block.qh[32 * (j / 8) + 16 * (j % 2) + l] |= (level >> 4) << (2 * (j % 8 / 2));
            }
        }
        block
    }
}
