//! Linears that were quantized by GPTQ, as its checkpoints store them (Frantar et al., 2022,
//! arXiv:2210.17323; the layout of AutoGPTQ and GPTQModel).
//!
//! Instead of `NAME.weight` there are `NAME.qweight`, words of 32 bits with 8 quants of 4 bits or 4
//! of 8 along the input, `[in / quants, out]`; `NAME.scales`, `[groups, out]` in F16;
//! `NAME.qzeros`, the zero points of groups of inputs, `[groups, out / quants]`; and `NAME.g_idx`, the
//! group of each input. A weight is its scale times its quant less the zero point. Symmetric ones, whose
//! zero points are half of the range, are blocks of Q4_0 and Q8_0; others of 4 bits are blocks of Q4_Z.
//! Where the inputs of a group are not neighbours, columns are put in the order of groups, and rows of
//! activations have to be put in it too.

use super::super::HfSettings;
use super::groups::{self, BLOCK_LEN, Groups};
use super::{Linears, ORDER, Parts, QUANTS, SCALES, ZEROS, word, words};
use crate::Error;
use realizar_formats::{Bytes, SafeTensors, Tensor, TensorType};
use realizar_quant::BlockType;

/// How the linears of a checkpoint are quantized.
#[derive(Debug)]
pub struct Gptq {
    bits: usize,
    /// Inputs that share a scale; all of them if `None`.
    group_len: Option<usize>,
    /// What is added to a stored zero point.
    zero_offset: u32,
    linears: Linears,
}

impl Gptq {
    /// Reads `quantization_config`, and finds the linears.
    ///
    /// # Errors
    /// If it asks for what is not supported, or a tensor is missing or is not as it should be: of
    /// another shape or type, of 8 bits with zero points other than half of the range, or with groups
    /// of different sizes.
    pub(super) fn open(
        settings: &HfSettings,
        config: &HfSettings,
        tensors: &SafeTensors,
    ) -> Result<Self, Error> {
        let bits = config.usize("bits")?;
        if ![4, 8].contains(&bits) {
            return Err(config.unsupported_value(format!("GPTQ of {bits} bits"), &["4", "8"]));
        }
        for key in ["desc_act", "lm_head", "static_groups", "sym", "true_sequential"] {
            config.bool_or(key, false)?;
        }
        if config.opt_object("dynamic")?.is_some_and(|modules| !modules.map().is_empty()) {
            return Err(config.unsupported("GPTQ with settings by module (`dynamic`)"));
        }
        let group_len = super::group_len(config, "group_size", "GPTQ")?;
        let zero_offset = match config.opt_str("checkpoint_format")? {
            None | Some("gptq") => 1,
            Some("gptq_v2") => 0,
            Some(other) => {
                let feature = format!("GPTQ in the format `{other}` (`checkpoint_format`)");
                return Err(config.unsupported_value(feature, &["gptq", "gptq_v2"]));
            }
        };
        let gptq = Self { bits, group_len, zero_offset, linears: Linears::find(tensors) };
        for linear in &gptq.linears.names {
            gptq.check(&Parts { settings, tensors, linear })?;
        }
        Ok(gptq)
    }

    pub(super) fn linears(&self) -> &Linears {
        &self.linears
    }

    /// Quants of a word.
    fn per_word(&self) -> usize {
        32 / self.bits
    }

    /// The type of the blocks that weights with these zero points become, if there is one.
    fn block_type(&self, zeros: &[u8]) -> Option<BlockType> {
        let (middle, mask) = (1 << (self.bits - 1), u32::MAX >> (32 - self.bits));
        let is_middle = |word: u32| {
            let mut zeros = (0..self.per_word()).map(|i| word >> (self.bits * i) & mask);
            zeros.all(|zero| zero + self.zero_offset == middle)
        };
        match (self.bits, words(zeros).all(is_middle)) {
            (4, true) => Some(BlockType::Q4_0),
            (8, true) => Some(BlockType::Q8_0),
            (4, false) => Some(BlockType::Q4_Z),
            _ => None,
        }
    }

    fn check(&self, parts: &Parts<'_>) -> Result<(), Error> {
        let refuse = |what: &str| Err(parts.refuse(&format!("GPTQ with {what}")));
        let quants = parts.find(QUANTS)?;
        let &[n_words, n_out] = &quants.shape[..] else { return refuse("no matrix of quants") };
        parts.check(quants, TensorType::I32, &[n_words, n_out])?;
        let n_in = n_words.saturating_mul(self.per_word());
        let are_blocks = n_in.is_multiple_of(BLOCK_LEN) && n_out.is_multiple_of(self.per_word());
        if n_words == 0 || n_out == 0 || !are_blocks {
            return refuse("inputs or outputs that fill no blocks");
        }
        let group_len = self.group_len.unwrap_or(n_in);
        let n_groups = n_in.div_ceil(group_len);
        parts.check(parts.find(SCALES)?, TensorType::F16, &[n_groups, n_out])?;
        let zeros = parts.check(
            parts.find(ZEROS)?,
            TensorType::I32,
            &[n_groups, n_out / self.per_word()],
        )?;
        if self.block_type(&zeros.data).is_none() {
            return refuse("zero points (`sym` is false) of 8 bits");
        }
        // Early files leave the groups out where they are runs of inputs.
        if let Ok(groups) = parts.find(ORDER) {
            let groups = parts.check(groups, TensorType::I32, &[n_in])?;
            let mut sorted: Vec<u32> = words(&groups.data).collect();
            sorted.sort_unstable();
            if !sorted.iter().enumerate().all(|(i, &group)| group as usize == i / group_len) {
                return refuse(&format!("groups of other than {group_len} inputs"));
            }
        }
        Ok(())
    }

    /// The inputs in the order of their groups, of a weight where that is not their own. That order,
    /// which `desc_act` makes, is the one of the weight's columns.
    pub(super) fn order(&self, tensors: &SafeTensors, name: &str) -> Option<Vec<u32>> {
        let linear = self.linears.linear_of(name)?;
        let groups = tensors.tensor(&format!("{linear}{ORDER}"))?.data;
        if words(&groups).is_sorted() {
            return None;
        }
        let n_in = u32::try_from(groups.len() / size_of::<u32>()).ok()?;
        let mut order: Vec<u32> = (0..n_in).collect();
        order.sort_by_key(|&input| word(&groups, input as usize));
        Some(order)
    }

    /// The weight `name`, `[n_out, n_in]`, if it is that of a quantized linear.
    pub(super) fn weight(&self, tensors: &SafeTensors, name: &str) -> Option<Tensor> {
        let linear = self.linears.linear_of(name)?;
        let find = |part: &str| tensors.tensor(&format!("{linear}{part}"));
        let (quants, zeros, scales) = (find(QUANTS)?, find(ZEROS)?, find(SCALES)?);
        let &[n_words, n_out] = &quants.shape[..] else { return None };
        let n_in = n_words * self.per_word();
        let ty = self.block_type(&zeros.data)?;
        let linear = Linear {
            bits: self.bits,
            n_out,
            zero_offset: self.zero_offset,
            order: self.order(tensors, name),
            quants: quants.data,
            zeros: zeros.data,
            scales: scales.data,
        };
        let group_len = self.group_len.unwrap_or(n_in);
        let n_bytes = n_out * (n_in / BLOCK_LEN * ty.block_bytes());
        let sources = vec![linear.quants.clone(), linear.zeros.clone(), linear.scales.clone()];
        let data = Bytes::made(sources, n_bytes, move || {
            groups::blocks(ty, [n_out, n_in], group_len, &linear)
        });
        Some(Tensor { name: name.to_owned(), ty: ty.into(), shape: vec![n_out, n_in], data })
    }
}

/// A quantized linear.
struct Linear {
    bits: usize,
    n_out: usize,
    zero_offset: u32,
    /// The input of each column.
    order: Option<Vec<u32>>,
    quants: Bytes, // [n_in * bits / 32, n_out]
    zeros: Bytes,  // [groups, n_out * bits / 32]
    scales: Bytes, // [groups, n_out], F16
}

impl Linear {
    /// Number `i` of a word.
    fn number(&self, word: u32, i: usize) -> u32 {
        word >> (i % (32 / self.bits) * self.bits) & (u32::MAX >> (32 - self.bits))
    }
}

impl Groups for Linear {
    fn quant(&self, column: usize, output: usize) -> u8 {
        let input = self.order.as_ref().map_or(column, |order| order[column] as usize);
        let line = input / (32 / self.bits);
        self.number(word(&self.quants, line * self.n_out + output), input) as u8
    }

    fn scale(&self, group: usize, output: usize) -> [u8; 2] {
        self.scales.as_chunks().0[group * self.n_out + output]
    }

    fn zero(&self, group: usize, output: usize) -> u32 {
        let per_word = 32 / self.bits;
        let word = word(&self.zeros, group * (self.n_out / per_word) + output / per_word);
        self.number(word, output) + self.zero_offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: impl Iterator<Item = u32>) -> Bytes {
        words.flat_map(u32::to_le_bytes).collect::<Vec<u8>>().into()
    }

    #[test]
    fn blocks_hold_the_weights() {
        use BlockType::{Q4_0, Q4_Z, Q8_0};
        let (n_in, n_out, group_len) = (128, 40, 64);
        // Another input for every column.
        let order: Vec<u32> = (0..n_in as u32).map(|column| column * 37 % 128).collect();
        let cases =
            [(4, Q4_0, 1, None), (8, Q8_0, 0, None), (4, Q4_Z, 1, None), (4, Q4_Z, 0, Some(order))];
        for (bits, ty, zero_offset, order) in cases {
            let (n_groups, per_word) = (n_in / group_len, 32 / bits);
            let random = |i: usize| (i as u32).wrapping_mul(0x9e37_79b9) ^ (i << 7) as u32;
            let middle = (1_u32 << (bits - 1)) - zero_offset;
            let zeros = move |i: usize| match ty {
                Q4_Z => random(i + 5),
                _ => (0..per_word).fold(0, |word, _| word << (bits % 32) | middle),
            };
            let scales: Vec<u8> =
                (0..n_groups * n_out).flat_map(|i| (0x2c00 + 3 * i as u16).to_le_bytes()).collect();
            let mut scale = vec![0.0; n_groups * n_out];
            realizar_quant::dequantize(BlockType::F16, &scales, &mut scale).unwrap();
            let linear = Linear {
                bits,
                n_out,
                zero_offset,
                order: order.clone(),
                quants: bytes((0..n_in / per_word * n_out).map(random)),
                zeros: bytes((0..n_groups * n_out / per_word).map(zeros)),
                scales: scales.into(),
            };
            let gptq =
                Gptq { bits, group_len: Some(group_len), zero_offset, linears: Linears::default() };
            assert_eq!(gptq.block_type(&linear.zeros), Some(ty));
            let mut found = vec![0.0; n_out * n_in];
            let blocks = groups::blocks(ty, [n_out, n_in], group_len, &linear);
            realizar_quant::dequantize(ty, &blocks, &mut found).unwrap();
            for (i, found) in found.into_iter().enumerate() {
                let (row, col) = (i / n_in, i % n_in);
                let mask = (1 << bits) - 1;
                let input = order.as_ref().map_or(col, |order| order[col] as usize);
                let word = random(input / per_word * n_out + row);
                let quant = word >> (input % per_word * bits) & mask;
                let word = zeros(col / group_len * (n_out / per_word) + row / per_word);
                let zero = (word >> (row % per_word * bits) & mask) + zero_offset;
                let scale = scale[col / group_len * n_out + row];
                assert_eq!(found, scale * (quant as f32 - zero as f32), "{ty} {row} {col}");
            }
        }
    }
}
