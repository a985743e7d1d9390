//! NVFP4: 64 elements of FP4 (`E2M1`) in 4 sub-blocks with FP8 scales (4.5 bits per element).
//!
//! Element `i` of sub-block `j` is `ue4m3_half(d[j]) * FP4[q]`. The layout is that of ggml's
//! `block_nvfp4`. The scale of the whole tensor is a tensor of its own in the file.

use bytemuck::{Pod, Zeroable};

use crate::block::{Block, Quantize};
use crate::codebook::FP4;
use crate::codebook_search::{fp4_levels, fp4_scale};
use crate::range::peak;
use crate::small_floats::ue4m3_half;

/// A block of NVFP4.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockNVFP4 {
    /// Scales of the sub-blocks, FP8 (`E4M3`) without a sign.
    pub d: [u8; 4],
    /// Levels: of 16 elements, the first 8 lie in low nibbles, the others in high ones.
    pub qs: [u8; 32],
}

impl BlockNVFP4 {
    /// Half of the scales of the sub-blocks, for the doubled values of the codebook.
    #[inline]
    pub fn half_scales(&self) -> [f32; 4] {
        self.d.map(ue4m3_half)
    }
}

impl Block for BlockNVFP4 {
    const LEN: usize = 64;

    fn dequantize(&self, out: &mut [f32]) {
        let blocks = out[..Self::LEN].chunks_exact_mut(16).zip(self.qs.chunks_exact(8));
        for ((out, qs), d) in blocks.zip(self.half_scales()) {
            let (lo, hi) = out.split_at_mut(8);
            for (i, q) in qs.iter().enumerate() {
                lo[i] = d * f32::from(FP4[usize::from(q & 0x0f)]);
                hi[i] = d * f32::from(FP4[usize::from(q >> 4)]);
            }
        }
    }
}

/// The largest scale, 448.
const MAX_SCALE: u8 = 0x7e;

/// The largest scale whose double is at most `x`.
fn ue4m3_below(x: f32) -> u8 {
    (1..=MAX_SCALE).take_while(|bits| 2.0 * ue4m3_half(*bits) <= x).last().unwrap_or(0)
}

impl Quantize for BlockNVFP4 {
    fn quantize(values: &[f32]) -> Self {
        let mut block = Self::zeroed();
        let mut levels = [0u8; 16];
        for (j, values) in values[..Self::LEN].chunks_exact(16).enumerate() {
            // The scale that maps the largest value to the largest FP4 number, and some around it.
            let center = ue4m3_below(peak(values) / 6.0);
            let candidates = center.saturating_sub(4)..=center.saturating_add(8).min(MAX_SCALE);
            block.d[j] = fp4_scale(values, candidates, ue4m3_half);
            fp4_levels(values, ue4m3_half(block.d[j]), &mut levels);
            for (i, q) in block.qs[8 * j..][..8].iter_mut().enumerate() {
                *q = levels[i] | levels[i + 8] << 4;
            }
        }
        block
    }
}
