//! IQ4_XS: 256 elements of 4 bits, levels of a codebook, in 8 sub-blocks with 6-bit signed scales
//! (4.25 bits per element).
//!
//! Element `i` of sub-block `j` is `(d * scale[j]) * IQ4[q]`. Layout after ggml's `block_iq4_xs`.

use bytemuck::{Pod, Zeroable};

use crate::block::{Block, Quantize};
use crate::codebook::IQ4;
use crate::codebook_search::{fit_iq4, iq4_error, iq4_levels};
use crate::half_bytes::f16_to_f32;
use crate::k_search::signed_scales;

/// A block of IQ4_XS.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockIQ4XS {
    /// Scale of the scales, binary16.
    pub d: [u8; 2],
    /// Upper 2 bits of the scales plus 32: sub-block `j` in bits `2 * j` of this little-endian word.
    pub scales_h: [u8; 2],
    /// Lower 4 bits of the scales plus 32: even sub-blocks in the low nibbles.
    pub scales_l: [u8; 4],
    /// Levels: of 32 elements, the first 16 lie in low nibbles, the others in high ones.
    pub qs: [u8; 128],
}

impl BlockIQ4XS {
    /// The super-block's scale.
    #[inline]
    pub fn d(&self) -> f32 {
        f16_to_f32(self.d)
    }

    /// The scales of the 8 sub-blocks, -32 to 31.
    #[inline]
    pub fn unpack_scales(&self) -> [i8; 8] {
        let high = u16::from_le_bytes(self.scales_h);
        std::array::from_fn(|j| {
            let low = self.scales_l[j / 2] >> (4 * (j % 2)) & 0x0f;
            (low | ((high >> (2 * j) & 3) as u8) << 4) as i8 - 32
        })
    }
}

impl Block for BlockIQ4XS {
    const LEN: usize = 256;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, scales) = (self.d(), self.unpack_scales());
        let blocks = out[..Self::LEN].chunks_exact_mut(32).zip(self.qs.chunks_exact(16));
        for ((out, qs), scale) in blocks.zip(scales) {
            let scale = d * f32::from(scale);
            let (lo, hi) = out.split_at_mut(16);
            for (i, q) in qs.iter().enumerate() {
                lo[i] = scale * f32::from(IQ4[usize::from(q & 0x0f)]);
                hi[i] = scale * f32::from(IQ4[usize::from(q >> 4)]);
            }
        }
    }
}

impl Quantize for BlockIQ4XS {
    fn quantize(values: &[f32]) -> Self {
        let values = &values[..Self::LEN];
        let (d, scales) = signed_scales::<8>(values, 32, fit_iq4, iq4_error);
        let mut block = Self { d, ..Self::zeroed() };
        let mut scales_h = 0u16;
        let mut levels = [0u8; 32];
        for (j, values) in values.chunks_exact(32).enumerate() {
            iq4_levels(values, block.d() * scales[j] as f32, &mut levels);
            let stored = (scales[j] + 32) as u8;
            block.scales_l[j / 2] |= (stored & 0x0f) << (4 * (j % 2));
            scales_h |= u16::from(stored >> 4) << (2 * j);
            for (i, q) in block.qs[16 * j..][..16].iter_mut().enumerate() {
                *q = levels[i] | levels[i + 16] << 4;
            }
        }
        block.scales_h = scales_h.to_le_bytes();
        block
    }
}
