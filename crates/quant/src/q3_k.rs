//! Q3_K: 256 elements of 3 bits in 16 sub-blocks with 6-bit signed scales.
//!
//! Element `i` of sub-block `j` is `(d * scale[j]) * (q - 4)`. Layout after ggml's
//! `block_q3_K`.

use bytemuck::{Pod, Zeroable};

use crate::block::{Block, Quantize};
use crate::half_bytes::f16_to_f32;
use crate::k_search::{symmetric_levels, symmetric_scales};

/// A block of Q3_K.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ3K {
    /// Bit 2 of the levels: of all elements, number `32 * k + l` lies in bit `k` of byte `l`.
    pub hmask: [u8; 32],
    /// Bits 0 and 1: of 128 elements, number `32 * k + l` lies in bits `2 * k` of byte `l` of 32.
    pub qs: [u8; 64],
    /// Scales plus 32: low nibbles in bytes 0 to 7, upper 2 bits in bytes 8 to 11.
    pub scales: [u8; 12],
    /// Scale of the scales, binary16.
    pub d: [u8; 2],
}

impl BlockQ3K {
    /// The super-block's scale.
    #[inline]
    pub fn d(&self) -> f32 {
        f16_to_f32(self.d)
    }

    /// The scales of the 16 sub-blocks, -32 to 31.
    #[inline]
    pub fn unpack_scales(&self) -> [i8; 16] {
        std::array::from_fn(|j| {
            let low = self.scales[j % 8] >> (4 * (j / 8)) & 0x0f;
            let high = self.scales[8 + j % 4] >> (2 * (j / 4)) & 3;
            (low | high << 4) as i8 - 32
        })
    }
}

impl Block for BlockQ3K {
    const LEN: usize = 256;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, scales) = (self.d(), self.unpack_scales());
        for (j, out) in out[..Self::LEN].chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(scales[j]);
            let qs = &self.qs[32 * (j / 8) + 16 * (j % 2)..][..16];
            let hmask = &self.hmask[16 * (j % 2)..][..16];
            let (shift, h_shift) = (2 * (j % 8 / 2), j / 2);
            for ((out, q), h) in out.iter_mut().zip(qs).zip(hmask) {
                let q = (q >> shift & 3 | (h >> h_shift & 1) << 2) as i8 - 4;
                *out = scale * f32::from(q);
            }
        }
    }
}

impl Quantize for BlockQ3K {
    fn quantize(values: &[f32]) -> Self {
        let values = &values[..Self::LEN];
        let (d, scales) = symmetric_scales::<16>(values, 32, 4);
        let mut block = Self { d, ..Self::zeroed() };
        let mut levels = [0u8; 16];
        for (j, values) in values.chunks_exact(16).enumerate() {
            symmetric_levels(values, block.d() * scales[j] as f32, 4, &mut levels);
            let stored = (scales[j] + 32) as u8;
            block.scales[j % 8] |= (stored & 0x0f) << (4 * (j / 8));
            block.scales[8 + j % 4] |= (stored >> 4) << (2 * (j / 4));
            for (l, level) in levels.into_iter().enumerate() {
                block.qs[32 * (j / 8) + 16 * (j % 2) + l] |= (level & 3) << (2 * (j % 8 / 2));
                block.hmask[16 * (j % 2) + l] |= (level >> 2) << (j / 2);
            }
        }
        block
    }
}
