//! Linears that were quantized by AWQ, as its checkpoints store them (Lin et al., 2023,
//! arXiv:2306.00978; the `gemm` layout of AutoAWQ).
//!
//! Instead of `NAME.weight` there are `NAME.qweight`, words of 32 bits with the quants of 8 outputs,
//! `[in, out / 8]`; `NAME.qzeros`, the zero points of groups of inputs in such words,
//! `[groups, out / 8]`; and `NAME.scales`, `[groups, out]` in F16. From the lowest bits on, a word has the
//! outputs 0, 2, 4, 6, 1, 3, 5 and 7. A weight is its scale times its quant less the zero point: a block
//! of Q4_Z.

use super::super::HfSettings;
use super::groups::{self, BLOCK_LEN, Groups};
use super::{Linears, Parts, QUANTS, SCALES, ZEROS, word};
use crate::Error;
use realizar_formats::{Bytes, SafeTensors, Tensor, TensorType};
use realizar_quant::BlockType;

const TY: BlockType = BlockType::Q4_Z;
/// Quants of a word.
const PER_WORD: usize = 8;
/// The place in its word of each of eight outputs.
const PLACES: [usize; PER_WORD] = [0, 4, 1, 5, 2, 6, 3, 7];

/// How the linears of a checkpoint are quantized.
#[derive(Debug)]
pub struct Awq {
    /// Inputs that share a scale; all of them if `None`.
    group_len: Option<usize>,
    linears: Linears,
}

impl Awq {
    /// Reads `quantization_config`, and finds the linears.
    ///
    /// # Errors
    /// If it asks for what is not supported, or a tensor is missing, or of another shape or type.
    pub(super) fn open(
        settings: &HfSettings,
        config: &HfSettings,
        tensors: &SafeTensors,
    ) -> Result<Self, Error> {
        // Older files have other names for the two.
        let bits = match config.opt_usize("bits")? {
            None => config.usize("w_bit")?,
            Some(bits) => bits,
        };
        if bits != 4 {
            return Err(config.unsupported_value(format!("AWQ of {bits} bits"), &["4"]));
        }
        let version = config.opt_str("version")?.unwrap_or("gemm");
        if !version.eq_ignore_ascii_case("gemm") {
            let feature = format!("AWQ in the layout `{version}` (`version`)");
            return Err(config.unsupported_value(feature, &["gemm"]));
        }
        if !config.bool_or("zero_point", true)? {
            return Err(config.unsupported("AWQ without zero points (`zero_point` is false)"));
        }
        config.opt_strs("modules_to_not_convert")?;
        let key = if config.has("group_size") { "group_size" } else { "q_group_size" };
        let group_len = super::group_len(config, key, "AWQ")?;
        let awq = Self { group_len, linears: Linears::find(tensors) };
        for linear in &awq.linears.names {
            awq.check(&Parts { settings, tensors, linear })?;
        }
        Ok(awq)
    }

    pub(super) fn linears(&self) -> &Linears {
        &self.linears
    }

    fn check(&self, parts: &Parts<'_>) -> Result<(), Error> {
        let quants = parts.find(QUANTS)?;
        let &[n_in, n_words] = &quants.shape[..] else {
            return Err(parts.refuse("AWQ with no matrix of quants"));
        };
        parts.check(quants, TensorType::I32, &[n_in, n_words])?;
        if n_in == 0 || n_words == 0 || !n_in.is_multiple_of(BLOCK_LEN) {
            return Err(parts.refuse("AWQ with inputs that fill no blocks"));
        }
        let group_len = self.group_len.unwrap_or(n_in);
        let n_groups = n_in.div_ceil(group_len);
        parts.check(parts.find(SCALES)?, TensorType::F16, &[n_groups, n_words * PER_WORD])?;
        parts.check(parts.find(ZEROS)?, TensorType::I32, &[n_groups, n_words])?;
        Ok(())
    }

    /// The weight `name`, `[n_out, n_in]`, if it is that of a quantized linear.
    pub(super) fn weight(&self, tensors: &SafeTensors, name: &str) -> Option<Tensor> {
        let linear = self.linears.linear_of(name)?;
        let [quants, zeros, scales] = [QUANTS, ZEROS, SCALES]
            .map(|part| tensors.tensor(&format!("{linear}{part}")).map(|tensor| tensor.data));
        let shape = tensors.tensor(&format!("{linear}{QUANTS}"))?.shape;
        let &[n_in, n_words] = &shape[..] else { return None };
        let n_out = n_words * PER_WORD;
        let linear = Linear { n_words, quants: quants?, zeros: zeros?, scales: scales? };
        let group_len = self.group_len.unwrap_or(n_in);
        let n_bytes = n_out * (n_in / BLOCK_LEN * TY.block_bytes());
        let sources = vec![linear.quants.clone(), linear.zeros.clone(), linear.scales.clone()];
        let data = Bytes::made(sources, n_bytes, move || {
            groups::blocks(TY, [n_out, n_in], group_len, &linear)
        });
        Some(Tensor { name: name.to_owned(), ty: TY.into(), shape: vec![n_out, n_in], data })
    }
}

/// A quantized linear.
struct Linear {
    /// Words of the outputs.
    n_words: usize,
    quants: Bytes, // [n_in, n_words]
    zeros: Bytes,  // [groups, n_words]
    scales: Bytes, // [groups, n_out], F16
}

impl Linear {
    /// The number of an output among the words of a line.
    fn nibble(&self, words: &[u8], line: usize, output: usize) -> u32 {
        let word = word(words, line * self.n_words + output / PER_WORD);
        word >> (4 * PLACES[output % PER_WORD]) & 15
    }
}

impl Groups for Linear {
    fn quant(&self, input: usize, output: usize) -> u8 {
        self.nibble(&self.quants, input, output) as u8
    }

    fn scale(&self, group: usize, output: usize) -> [u8; 2] {
        self.scales.as_chunks().0[group * self.n_words * PER_WORD + output]
    }

    fn zero(&self, group: usize, output: usize) -> u32 {
        self.nibble(&self.zeros, group, output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of the numbers of eight outputs, as AWQ packs them.
    fn words(lines: &[[u32; 8]]) -> Bytes {
        let word = |line: &[u32; 8]| {
            let packed = [0, 2, 4, 6, 1, 3, 5, 7].map(|output| line[output]);
            packed.iter().rev().fold(0, |word, number| word << 4 | number)
        };
        lines.iter().flat_map(|line| word(line).to_le_bytes()).collect::<Vec<u8>>().into()
    }

    #[test]
    fn a_weight_is_its_scale_times_its_quant_less_the_zero_point() {
        // Two groups of 32 inputs, eight outputs; the quant of input `i` of output `o` is `i + o`.
        let quants: Vec<[u32; 8]> =
            (0..64).map(|i| std::array::from_fn(|o| (i + o as u32) % 16)).collect();
        let zeros = [[0, 1, 2, 3, 4, 5, 6, 15], [8; 8]];
        let scale = |group: usize, output: usize| (1 + output) as f32 * [0.5, -2.0][group];
        let scales = [0, 1].map(|g| [0, 1, 2, 3, 4, 5, 6, 7].map(|o| scale(g, o)));
        let halves = scales.as_flattened().iter();
        let halves: Vec<u8> =
            halves.flat_map(|s| realizar_quant::half_bytes::f32_to_f16(*s)).collect();
        let linear = Linear {
            n_words: 1,
            quants: words(&quants),
            zeros: words(&zeros),
            scales: halves.into(),
        };
        let mut found = vec![0.0; 8 * 64];
        let blocks = groups::blocks(TY, [8, 64], 32, &linear);
        realizar_quant::dequantize(TY, &blocks, &mut found).unwrap();
        for (i, found) in found.into_iter().enumerate() {
            let (output, input) = (i / 64, i % 64);
            let quant = (input + output) as f32 % 16.0;
            let zero = zeros[input / 32][output] as f32;
            assert_eq!(found, scale(input / 32, output) * (quant - zero), "{output} {input}");
        }
        // By hand: output 7 of input 3 in group 0 is 4.0 * (10 - 15).
        let mut row = [0.0; 64];
        realizar_quant::dequantize(TY, &blocks[7 * 40..], &mut row).unwrap();
        assert_eq!(row[3], -20.0);
    }
}
