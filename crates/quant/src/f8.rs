//! F8: one FP8 number of 4 exponent and 3 mantissa bits (OCP `E4M3`) without a scale.
//!
//! It is a type of keys and values. Values beyond its range saturate at 448; infinities become NaN.

use bytemuck::{Pod, Zeroable};

use crate::block::{Block, Quantize};
use crate::small_floats::{e4m3, e4m3_is_nan, to_e4m3};

/// One FP8 number.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockF8(pub u8);

/// NaN.
const NAN: u8 = 0x7f;

impl Block for BlockF8 {
    const LEN: usize = 1;

    fn dequantize(&self, out: &mut [f32]) {
        out[0] = if e4m3_is_nan(self.0) { f32::NAN } else { e4m3(self.0) };
    }
}

impl Quantize for BlockF8 {
    fn quantize(values: &[f32]) -> Self {
        Self(if values[0].is_finite() { to_e4m3(values[0]) } else { NAN })
    }
}
