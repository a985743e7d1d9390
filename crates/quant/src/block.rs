//! The traits of block structs, and the loops over rows of blocks.
//!
//! The table in `block_type` instantiates the loops once per type. The public functions in `row` check
//! sizes; here they are asserted.

use bytemuck::Pod;

/// Elements of the longest block.
pub(crate) const MAX_LEN: usize = 256;

/// A block of a tensor in its file layout: plain bytes of alignment 1.
pub trait Block: Pod {
    /// Elements in a block.
    const LEN: usize;

    /// Writes the block's values to `out` (`[LEN]`).
    ///
    /// # Panics
    /// If `out` is shorter than `LEN`.
    fn dequantize(&self, out: &mut [f32]);

    /// Writes the values of many blocks to `out` (`[blocks.len() * LEN]`).
    fn dequantize_blocks(blocks: &[Self], out: &mut [f32]) {
        for (block, out) in blocks.iter().zip(out.chunks_exact_mut(Self::LEN)) {
            block.dequantize(out);
        }
    }
}

/// A block that values can be quantized to.
pub trait Quantize: Block {
    /// Quantizes `values` (`[LEN]`). The result is unspecified if a value is not finite.
    ///
    /// # Panics
    /// If `values` is shorter than `LEN`.
    fn quantize(values: &[f32]) -> Self;
}

/// Casts bytes to blocks. The caller has checked that they are whole blocks.
fn blocks_of<B: Block>(bytes: &[u8]) -> &[B] {
    assert!(bytes.len().is_multiple_of(size_of::<B>()));
    bytemuck::cast_slice(bytes)
}

pub(crate) fn dequantize_row<B: Block>(bytes: &[u8], out: &mut [f32]) {
    let blocks = blocks_of::<B>(bytes);
    assert_eq!(blocks.len() * B::LEN, out.len());
    B::dequantize_blocks(blocks, out);
}

pub(crate) fn quantize_row<B: Quantize>(values: &[f32], out: &mut [u8]) {
    assert!(out.len().is_multiple_of(size_of::<B>()));
    let blocks: &mut [B] = bytemuck::cast_slice_mut(out);
    assert_eq!(blocks.len() * B::LEN, values.len());
    for (block, values) in blocks.iter_mut().zip(values.chunks_exact(B::LEN)) {
        *block = B::quantize(values);
    }
}

pub(crate) fn dot_row<B: Block>(bytes: &[u8], x: &[f32]) -> f64 {
    let blocks = blocks_of::<B>(bytes);
    assert_eq!(blocks.len() * B::LEN, x.len());
    let mut buf = [0.0f32; MAX_LEN];
    let mut sum = 0.0f64;
    for (block, x) in blocks.iter().zip(x.chunks_exact(B::LEN)) {
        let w = &mut buf[..B::LEN];
        block.dequantize(w);
        for (w, x) in w.iter().zip(x) {
            sum += f64::from(*w) * f64::from(*x);
        }
    }
    sum
}
