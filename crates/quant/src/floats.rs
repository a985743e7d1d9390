//! The plain floats F32, F16 and BF16 as blocks of one element.

use bytemuck::{Pod, Zeroable};
use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::block::{Block, Quantize};
use crate::half_bytes::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// One little-endian IEEE 754 binary32.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockF32(pub [u8; 4]);

impl Block for BlockF32 {
    const LEN: usize = 1;

    fn dequantize(&self, out: &mut [f32]) {
        out[0] = f32::from_le_bytes(self.0);
    }
}

impl Quantize for BlockF32 {
    fn quantize(values: &[f32]) -> Self {
        Self(values[0].to_le_bytes())
    }
}

/// One little-endian IEEE 754 binary16.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockF16(pub [u8; 2]);

impl Block for BlockF16 {
    const LEN: usize = 1;

    fn dequantize(&self, out: &mut [f32]) {
        out[0] = f16_to_f32(self.0);
    }

    // Slices are converted, so that the CPU's conversion instructions are detected once per chunk.
    fn dequantize_blocks(blocks: &[Self], out: &mut [f32]) {
        let mut halves = [f16::ZERO; 128];
        for (blocks, out) in blocks.chunks(halves.len()).zip(out.chunks_mut(halves.len())) {
            let halves = &mut halves[..blocks.len()];
            for (half, block) in halves.iter_mut().zip(blocks) {
                *half = f16::from_le_bytes(block.0);
            }
            halves.convert_to_f32_slice(out);
        }
    }
}

impl Quantize for BlockF16 {
    fn quantize(values: &[f32]) -> Self {
        Self(f32_to_f16(values[0]))
    }
}

/// One little-endian bfloat16, the upper half of a binary32.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockBF16(pub [u8; 2]);

impl Block for BlockBF16 {
    const LEN: usize = 1;

    fn dequantize(&self, out: &mut [f32]) {
        out[0] = bf16_to_f32(self.0);
    }
}

impl Quantize for BlockBF16 {
    fn quantize(values: &[f32]) -> Self {
        Self(f32_to_bf16(values[0]))
    }
}
