//! Q8_K: 256 elements of 8 bits, one single-precision scale and sums of levels.
//!
//! Element `i` is `d * qs[i]`. The type holds activations for dot products with the
//! other 256-element types; the sums take no part in the values. Layout after
//! ggml's `block_q8_K`.

use bytemuck::{Pod, Zeroable};

use crate::block::{Block, Quantize};
use crate::range::signed_peak;

/// A block of Q8_K.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ8K {
    /// Scale, binary32.
    pub d: [u8; 4],
    /// Levels, -127 to 127 when made by `quantize`.
    pub qs: [i8; 256],
    /// Sums of the levels of each 16 elements, little-endian 16-bit integers.
    pub bsums: [[u8; 2]; 16],
}

impl BlockQ8K {
    /// The scale.
    #[inline]
    pub fn d(&self) -> f32 {
        f32::from_le_bytes(self.d)
    }

    /// The sum of the levels of elements `16 * j` to `16 * j + 15`.
    #[inline]
    pub fn bsum(&self, j: usize) -> i16 {
        i16::from_le_bytes(self.bsums[j])
    }
}

impl Block for BlockQ8K {
    const LEN: usize = 256;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d();
        for (out, q) in out[..Self::LEN].iter_mut().zip(&self.qs) {
            *out = d * f32::from(*q);
        }
    }
}

impl Quantize for BlockQ8K {
    fn quantize(values: &[f32]) -> Self {
        let values = &values[..Self::LEN];
        let peak = signed_peak(values);
        let mut block = Self::zeroed();
        if peak == 0.0 {
            return block;
        }
        let inv_d = -127.0 / peak;
        block.d = (1.0 / inv_d).to_le_bytes();
        for (q, x) in block.qs.iter_mut().zip(values) {
            *q = (inv_d * x).round_ties_even() as i8;
        }
        for (sum, qs) in block.bsums.iter_mut().zip(block.qs.chunks_exact(16)) {
            *sum = qs.iter().map(|q| i16::from(*q)).sum::<i16>().to_le_bytes();
        }
        block
    }
}
