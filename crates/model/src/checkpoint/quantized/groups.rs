//! Blocks of linears whose inputs have scales, and zero points if any, by group.

use rayon::prelude::*;
use realizar_quant::BlockType;
use realizar_quant::half_bytes::f32_to_f16;

/// Weights that share a scale in the blocks that are made.
pub(super) const BLOCK_LEN: usize = 32;
/// Bytes of a number in F16.
const HALF_BYTES: usize = 2;
/// Outputs that are written together, whose numbers are neighbours in the tensors.
const TILE: usize = 16;

/// What a linear's blocks are made of.
pub(super) trait Groups: Sync {
    /// The quant of a column of an output, from 0.
    fn quant(&self, column: usize, output: usize) -> u8;
    /// The scale, in F16.
    fn scale(&self, group: usize, output: usize) -> [u8; HALF_BYTES];
    /// The quant that stands for zero, where blocks have one.
    fn zero(&self, group: usize, output: usize) -> u32;
}

/// The blocks of `[n_out, n_in]` weights whose inputs have groups of `group_len`, of Q4_0 or Q8_0, where
/// half of the range stands for zero, or of Q4_Z.
pub(super) fn blocks(
    ty: BlockType,
    [n_out, n_in]: [usize; 2],
    group_len: usize, // a multiple of BLOCK_LEN
    linear: &impl Groups,
) -> Vec<u8> {
    let block_bytes = ty.block_bytes();
    let row_bytes = n_in / BLOCK_LEN * block_bytes;
    let mut out = vec![0; n_out * row_bytes];
    if row_bytes == 0 {
        return out;
    }
    let head_bytes = if ty == BlockType::Q4_Z { 2 * HALF_BYTES } else { HALF_BYTES };
    out.par_chunks_mut(TILE * row_bytes).enumerate().for_each(|(tile, rows)| {
        for block in 0..n_in / BLOCK_LEN {
            let group = block * BLOCK_LEN / group_len;
            let places = rows.chunks_exact_mut(row_bytes).enumerate();
            for (row, out) in places {
                let (head, _) = out[block * block_bytes..].split_at_mut(head_bytes);
                let output = tile * TILE + row;
                head[..HALF_BYTES].copy_from_slice(&linear.scale(group, output));
                if ty == BlockType::Q4_Z {
                    let zero = f32_to_f16(linear.zero(group, output) as f32);
                    head[HALF_BYTES..].copy_from_slice(&zero);
                }
            }
            // A line of the tensors has the numbers of one input.
            for i in 0..BLOCK_LEN {
                for (row, out) in rows.chunks_exact_mut(row_bytes).enumerate() {
                    let quant = linear.quant(block * BLOCK_LEN + i, tile * TILE + row);
                    let quants = &mut out[block * block_bytes + head_bytes..];
                    match ty {
                        BlockType::Q8_0 => quants[i] = quant ^ 0x80,
                        // The first half of a block is in the low nibbles.
                        _ => quants[i % 16] |= quant << (i / 16 * 4),
                    }
                }
            }
        }
    });
    out
}
