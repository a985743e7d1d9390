//! Linears that were quantized by GPTQ, as its checkpoints store them (Frantar et al., 2022,
//! arXiv:2210.17323; the layout of AutoGPTQ and GPTQModel).
//!
//! Instead of `NAME.weight` there are `NAME.qweight`, words of 32 bits with 8 quants of 4 bits or 4
//! of 8 along the input, `[in / quants, out]`; `NAME.scales`, `[groups, out]` in F16;
//! `NAME.qzeros`, `[groups, out / quants]`; and `NAME.g_idx`, the group of each input. Symmetric ones
//! are blocks of Q4_0 and Q8_0 without loss: a weight is its scale times its quant less half of the
//! range in both. So that is what they become when they are read.

use super::super::HfSettings;
use super::Parts;
use crate::Error;
use rayon::prelude::*;
use realizar_formats::{Bytes, SafeTensors, Tensor, TensorType};
use realizar_quant::BlockType;

/// Weights that share a scale in the blocks that are made.
const BLOCK_LEN: usize = 32;
/// Bytes of a block's scale, in F16.
const SCALE_BYTES: usize = 2;
/// Outputs that are written together: a line of words is read for all of them.
const TILE: usize = 16;

/// What the tensors of a quantized linear end in.
const QUANTS: &str = ".qweight";
const ZEROS: &str = ".qzeros";
const SCALES: &str = ".scales";
const ORDER: &str = ".g_idx";

/// How the linears of a checkpoint are quantized.
#[derive(Debug)]
pub struct Gptq {
    bits: usize,
    /// Inputs that share a scale; all of them if `None`.
    group_len: Option<usize>,
    /// What is added to a stored zero point.
    zero_offset: u32,
    /// The linears, sorted.
    linears: Vec<String>,
    /// Of each, the name of the weight that is made of it.
    weights: Vec<String>,
}

impl Gptq {
    /// Reads `quantization_config`, and finds the linears.
    ///
    /// # Errors
    /// If it asks for what is not supported, or a tensor is missing or is not as it should be: of
    /// another shape or type, with zero points other than half of the range, or with inputs in another
    /// order than their groups.
    pub(super) fn open(
        settings: &HfSettings,
        config: &HfSettings,
        tensors: &SafeTensors,
    ) -> Result<Self, Error> {
        let bits = config.usize("bits")?;
        if ![4, 8].contains(&bits) {
            return Err(config.unsupported(format!("GPTQ of {bits} bits")));
        }
        if config.opt_object("dynamic")?.is_some_and(|modules| !modules.map().is_empty()) {
            return Err(config.unsupported("GPTQ with settings by module (`dynamic`)"));
        }
        let group_len = match config.opt_f32("group_size")? {
            None | Some(-1.0) => None,
            Some(n) if n > 0.0 && n % BLOCK_LEN as f32 == 0.0 => Some(n as usize),
            Some(n) => return Err(config.unsupported(format!("GPTQ with groups of {n}"))),
        };
        let zero_offset = match config.opt_str("checkpoint_format")? {
            None | Some("gptq") => 1,
            Some("gptq_v2") => 0,
            Some(other) => {
                return Err(config.unsupported(format!("GPTQ in the format `{other}`")));
            }
        };
        let names = tensors.tensors().iter().filter_map(|info| info.name.strip_suffix(QUANTS));
        let mut linears: Vec<String> = names.map(str::to_owned).collect();
        linears.sort_unstable();
        let weights = linears.iter().map(|name| format!("{name}.weight")).collect();
        let gptq = Self { bits, group_len, zero_offset, linears, weights };
        for linear in &gptq.linears {
            gptq.check(&Parts { settings, tensors, linear })?;
        }
        Ok(gptq)
    }

    /// The names of the weights that are made.
    pub(super) fn weights(&self) -> &[String] {
        &self.weights
    }

    /// Whether a tensor is part of a quantized linear.
    pub(super) fn is_part(&self, name: &str) -> bool {
        let linear = [QUANTS, ZEROS, SCALES, ORDER].iter().find_map(|it| name.strip_suffix(it));
        linear.is_some_and(|linear| self.has(linear))
    }

    fn has(&self, linear: &str) -> bool {
        self.linears.binary_search_by(|name| name.as_str().cmp(linear)).is_ok()
    }

    /// Quants of a word.
    fn per_word(&self) -> usize {
        32 / self.bits
    }

    fn check(&self, parts: &Parts<'_>) -> Result<(), Error> {
        let refuse = |what: &str| Err(parts.refuse(&format!("GPTQ with {what}")));
        let quants = parts.find(QUANTS)?;
        let &[n_words, n_out] = &quants.shape[..] else { return refuse("no matrix of quants") };
        parts.check(quants, TensorType::I32, &[n_words, n_out])?;
        let n_in = n_words * self.per_word();
        let group_len = self.group_len.unwrap_or(n_in).max(1);
        let n_groups = n_in.div_ceil(group_len);
        if !n_in.is_multiple_of(BLOCK_LEN) || !n_out.is_multiple_of(self.per_word()) {
            return refuse("inputs or outputs that fill no blocks");
        }
        parts.check(parts.find(SCALES)?, TensorType::F16, &[n_groups, n_out])?;
        let zeros = parts.check(
            parts.find(ZEROS)?,
            TensorType::I32,
            &[n_groups, n_out / self.per_word()],
        )?;
        let (middle, mask) = (1 << (self.bits - 1), u32::MAX >> (32 - self.bits));
        let is_middle = |word: u32| {
            let mut zeros = (0..self.per_word()).map(|i| word >> (self.bits * i) & mask);
            zeros.all(|zero| zero + self.zero_offset == middle)
        };
        if !words(&zeros.data).all(is_middle) {
            return refuse("zero points (`sym` is false)");
        }
        // Early files leave the order out where it is that of the inputs.
        if let Ok(order) = parts.find(ORDER) {
            let order = parts.check(order, TensorType::I32, &[n_in])?;
            if !words(&order.data).enumerate().all(|(i, group)| group as usize == i / group_len) {
                return refuse("inputs in another order (`desc_act`)");
            }
        }
        Ok(())
    }

    /// The weight `name`, `[n_out, n_in]`, if it is that of a quantized linear.
    pub(super) fn weight(&self, tensors: &SafeTensors, name: &str) -> Option<Tensor> {
        let linear = name.strip_suffix(".weight").filter(|linear| self.has(linear))?;
        let quants = tensors.tensor(&format!("{linear}{QUANTS}"))?;
        let scales = tensors.tensor(&format!("{linear}{SCALES}"))?;
        let &[n_words, n_out] = &quants.shape[..] else { return None };
        let n_in = n_words * self.per_word();
        let ty = if self.bits == 4 { BlockType::Q4_0 } else { BlockType::Q8_0 };
        let n_bytes = n_out * (n_in / BLOCK_LEN * ty.block_bytes());
        let (bits, group_len) = (self.bits, self.group_len.unwrap_or(n_in));
        let sources = vec![quants.data.clone(), scales.data.clone()];
        let data = Bytes::made(sources, n_bytes, move || {
            let quants = words(&quants.data).collect();
            let scales = scales.data.as_chunks().0;
            Linear { bits, n_in, n_out, group_len, quants, scales }.blocks()
        });
        Some(Tensor { name: name.to_owned(), ty: ty.into(), shape: vec![n_out, n_in], data })
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word))
}

/// A quantized linear.
struct Linear<'a> {
    bits: usize,
    n_in: usize,
    n_out: usize,
    group_len: usize,
    quants: Vec<u32>,                // [n_in * bits / 32, n_out]
    scales: &'a [[u8; SCALE_BYTES]], // [groups, n_out], F16
}

impl Linear<'_> {
    /// Its rows as blocks of Q4_0 or Q8_0, `[n_out, n_in]`.
    fn blocks(&self) -> Vec<u8> {
        let block_bytes = SCALE_BYTES + BLOCK_LEN * self.bits / 8;
        let row_bytes = self.n_in / BLOCK_LEN * block_bytes;
        let mut out = vec![0; self.n_out * row_bytes];
        if row_bytes == 0 {
            return out;
        }
        out.par_chunks_mut(TILE * row_bytes).enumerate().for_each(|(tile, rows)| {
            let n_rows = rows.len() / row_bytes;
            for block in 0..self.n_in / BLOCK_LEN {
                let group = block * BLOCK_LEN / self.group_len;
                for row in 0..n_rows {
                    let at = row * row_bytes + block * block_bytes;
                    let scale = self.scales[group * self.n_out + tile * TILE + row];
                    rows[at..at + SCALE_BYTES].copy_from_slice(&scale);
                }
                for i in 0..BLOCK_LEN {
                    let (word, shift) = self.place(block * BLOCK_LEN + i);
                    let words = &self.quants[word * self.n_out + tile * TILE..][..n_rows];
                    for (row, word) in words.iter().enumerate() {
                        let quants =
                            &mut rows[row * row_bytes + block * block_bytes + SCALE_BYTES..];
                        match self.bits {
                            // The first half of a block is in the low nibbles.
                            4 => quants[i % 16] |= ((word >> shift & 15) as u8) << (i / 16 * 4),
                            _ => quants[i] = ((word >> shift) as u8) ^ 0x80,
                        }
                    }
                }
            }
        });
        out
    }

    /// The word and the bit at which the quant of an input begins.
    fn place(&self, input: usize) -> (usize, usize) {
        let per_word = 32 / self.bits;
        (input / per_word, input % per_word * self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_hold_the_weights() {
        for (bits, ty) in [(4, BlockType::Q4_0), (8, BlockType::Q8_0)] {
            let (n_in, n_out, group_len) = (128, 40, 64);
            let n_words = n_in * bits / 32 * n_out;
            let quants: Vec<u32> =
                (0..n_words as u32).map(|i| i.wrapping_mul(0x9e37_79b9) ^ (i << 7)).collect();
            let n_scales = n_in / group_len * n_out;
            let scales: Vec<[u8; 2]> =
                (0..n_scales as u16).map(|i| (0x2c00 + 3 * i).to_le_bytes()).collect();
            let mut scale = vec![0.0; n_scales];
            let bytes = scales.as_flattened();
            realizar_quant::dequantize(BlockType::F16, bytes, &mut scale).unwrap();
            let linear = Linear { bits, n_in, n_out, group_len, quants, scales: &scales };
            let mut found = vec![0.0; n_out * n_in];
            realizar_quant::dequantize(ty, &linear.blocks(), &mut found).unwrap();
            for (i, found) in found.into_iter().enumerate() {
                let (row, col) = (i / n_in, i % n_in);
                let word = linear.quants[col * bits / 32 * n_out + row];
                let quant = word >> (col * bits % 32) & ((1 << bits) - 1);
                let scale = scale[col / group_len * n_out + row];
                assert_eq!(found, scale * (quant as f32 - (1 << (bits - 1)) as f32), "{row} {col}");
            }
        }
    }
}
