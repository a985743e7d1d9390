//! TQ1_0: 256 elements of -1, 0 or 1, five per byte, and one scale (1.6875 bits per element).
//!
//! Element `i` is `d * (t[i] - 1)`. A byte has up to five base-3 digits, as the fraction `0.t0t1t2t3t4` in
//! units of 1/256, rounded up, so that a digit is the carry of a multiplication by 3. Layout after ggml's
//! `block_tq1_0`.

use bytemuck::{Pod, Zeroable};

use crate::block::{Block, Quantize};
use crate::half_bytes::{f16_to_f32, f32_to_f16};
use crate::ternary_search::{fit_ternary, ternary_level};

/// A block of TQ1_0.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockTQ1_0 {
    /// Elements 0 to 159, number `32 * k + l` in digit `k` of byte `l`, then elements 160 to 239,
    /// number `16 * k + l` of them in digit `k` of byte `32 + l`.
    pub qs: [u8; 48],
    /// Elements 240 to 255, number `4 * k + l` of them in digit `k` of byte `l`.
    pub qh: [u8; 4],
    /// Scale, binary16.
    pub d: [u8; 2],
}

/// Factors that move each digit to the front when a byte is multiplied by them modulo 256.
const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

/// Digit `k` of a byte, 0 to 2.
#[inline]
fn digit(byte: u8, k: usize) -> u8 {
    ((u16::from(byte.wrapping_mul(POWERS[k])) * 3) >> 8) as u8
}

/// Packs five digits, each 0 to 2, to a byte.
fn byte_of(digits: [u8; 5]) -> u8 {
    let number = digits.iter().fold(0u16, |number, d| 3 * number + u16::from(*d));
    (number * 256).div_ceil(243) as u8
}

impl BlockTQ1_0 {
    /// The scale.
    #[inline]
    pub fn d(&self) -> f32 {
        f16_to_f32(self.d)
    }

    /// The levels of all elements, 0 to 2.
    pub fn levels(&self) -> [u8; 256] {
        let mut levels = [0; 256];
        let (first, rest) = levels.split_at_mut(160);
        let (second, last) = rest.split_at_mut(80);
        for (levels, bytes) in
            [(first, &self.qs[..32]), (second, &self.qs[32..]), (last, &self.qh[..])]
        {
            for (k, levels) in levels.chunks_exact_mut(bytes.len()).enumerate() {
                for (level, byte) in levels.iter_mut().zip(bytes) {
                    *level = digit(*byte, k);
                }
            }
        }
        levels
    }
}

impl Block for BlockTQ1_0 {
    const LEN: usize = 256;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d();
        for (out, level) in out[..Self::LEN].iter_mut().zip(self.levels()) {
            *out = d * f32::from(level as i8 - 1);
        }
    }
}

impl Quantize for BlockTQ1_0 {
    fn quantize(values: &[f32]) -> Self {
        let values = &values[..Self::LEN];
        let mut block = Self { d: f32_to_f16(fit_ternary(values)), ..Self::zeroed() };
        let d = block.d();
        let (qs, rest) = block.qs.split_at_mut(32);
        for (bytes, values) in
            [(qs, &values[..160]), (rest, &values[160..240]), (&mut block.qh[..], &values[240..])]
        {
            let stride = bytes.len();
            for (l, byte) in bytes.iter_mut().enumerate() {
                *byte = byte_of(std::array::from_fn(|k| {
                    values.get(k * stride + l).map_or(0, |x| ternary_level(*x, d))
                }));
            }
        }
        block
    }
}
