//! Q5_K: 256 elements of 5 bits in 8 sub-blocks with 6-bit scales and minimums.
//!
//! Element `i` of sub-block `j` is `(d * scale[j]) * q - dmin * min[j]`. Layout
//! after ggml's `block_q5_K`.

use bytemuck::{Pod, Zeroable};

use crate::block::{Block, Quantize};
use crate::half_bytes::f16_to_f32;
use crate::k_scales;
use crate::k_search::{affine_levels, affine_scales};

/// A block of Q5_K.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ5K {
    /// Scale of the scales, binary16.
    pub d: [u8; 2],
    /// Scale of the minimums, binary16.
    pub dmin: [u8; 2],
    /// Scales and minimums of the sub-blocks, packed as [`k_scales`] says.
    pub scales: [u8; 12],
    /// Bit 4 of the levels: element `l` of sub-block `j` lies in bit `j` of byte `l`.
    pub qh: [u8; 32],
    /// Bits 0 to 3 of the levels: of 64 elements, the first 32 lie in low nibbles, the others in high ones.
    pub qs: [u8; 128],
}

impl BlockQ5K {
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

    /// The scales and the minimums of the 8 sub-blocks, each 0 to 63.
    #[inline]
    pub fn unpack_scales(&self) -> ([u8; 8], [u8; 8]) {
        k_scales::unpack(&self.scales)
    }
}

impl Block for BlockQ5K {
    const LEN: usize = 256;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, dmin) = (self.d(), self.dmin());
        let (scales, mins) = self.unpack_scales();
        for (j, out) in out[..Self::LEN].chunks_exact_mut(32).enumerate() {
            let scale = d * f32::from(scales[j]);
            let min = dmin * f32::from(mins[j]);
            let qs = &self.qs[32 * (j / 2)..][..32];
            let shift = 4 * (j % 2);
            for ((out, q), h) in out.iter_mut().zip(qs).zip(&self.qh) {
                let q = q >> shift & 0x0f | (h >> j & 1) << 4;
                *out = scale * f32::from(q) - min;
            }
        }
    }
}

impl Quantize for BlockQ5K {
    fn quantize(values: &[f32]) -> Self {
        let values = &values[..Self::LEN];
        let (d, dmin, scales, mins) = affine_scales::<8>(values, 63, 31);
        let packed = k_scales::pack(&scales, &mins);
        let mut block = Self { d, dmin, scales: packed, ..Self::zeroed() };
        let mut levels = [0u8; 32];
        for (j, values) in values.chunks_exact(32).enumerate() {
            let scale = block.d() * f32::from(scales[j]);
            affine_levels(values, scale, block.dmin() * f32::from(mins[j]), 31, &mut levels);
            for (l, level) in levels.into_iter().enumerate() {
                block.qs[32 * (j / 2) + l] |= (level & 0x0f) << (4 * (j % 2));
                block.qh[l] |= (level >> 4) << j;
            }
        }
        block
    }
}
