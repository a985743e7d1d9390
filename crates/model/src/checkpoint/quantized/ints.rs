//! Linears of integers with a scale for each group of inputs of a row, for each row or for all weights, as the layouts
//! of several methods have them: [`Names`] says how the tensors of a linear are called.
//!
//! Quants are 8-bit integers, `[out, in]`, or words of 32 bits with 8 quants of 4 bits or 4 of 8 along the input, from
//! the lowest bits on and more by half of their range, with the shape `[out, in]` beside them. Scales are
//! `[out, groups]`. Zero points are packed along the output, `[out / 8, groups]`, where quants are, or are integers
//! like scales. A tensor may have the group of each input; groups then need not be neighbours.
//!
//! They become blocks of Q4_0, Q4_Z and Q8_0 where F16 holds the scales, if need be times a power of two by which
//! products are divided. What these blocks do not hold exactly becomes F32.

use super::groups::{self, BLOCK_LEN, Groups};
use super::{Parts, exponent_for_f16, floats, word, words};
use crate::Error;
use rayon::prelude::*;
use realizar_formats::{Bytes, SafeTensors, Tensor, TensorType};
use realizar_quant::BlockType;
use realizar_quant::half_bytes::f32_to_f16;

/// What the tensors of a linear end in.
#[derive(Debug)]
pub(super) struct Names {
    /// Quants in words, and the shape beside them.
    pub(super) packed: Option<(&'static str, &'static str)>,
    /// Quants that are 8-bit integers.
    pub(super) plain: &'static str,
    pub(super) scale: &'static str,
    pub(super) zero_point: Option<&'static str>,
    pub(super) groups: Option<&'static str>,
    /// A weight is its quant times its scale, divided by this.
    pub(super) divisor: f32,
}

/// The weights that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shares {
    Tensor,
    Row,
    Group(usize),
    Tile([usize; 2]),
}

/// How a linear of integers is stored, and what it becomes.
#[derive(Debug)]
pub(super) struct Ints {
    names: &'static Names,
    bits: usize,
    is_packed: bool,
    n_out: usize,
    n_in: usize,
    shares: Shares,
    /// Groups of inputs, of which each row has scales.
    n_groups: usize,
    has_zero_points: bool,
    ty: BlockType,
    /// Blocks have their scales times two to this power.
    exponent: i32,
    /// Whether columns are in the order of their groups, which is not that of the inputs.
    is_reordered: bool,
}

impl Ints {
    /// Reads the shapes of a linear's tensors, and what tells the type of its blocks.
    ///
    /// # Errors
    /// If a tensor is missing, or of another shape or type.
    pub(super) fn open(parts: &Parts<'_>, names: &'static Names) -> Result<Self, Error> {
        let packed =
            names.packed.and_then(|(packed, shape)| Some((parts.find(packed).ok()?, shape)));
        let (quants, shape_of) = match packed {
            Some((packed, shape)) => (packed, Some(shape)),
            None => (parts.find(names.plain)?, None),
        };
        let is_packed = shape_of.is_some();
        let &[n_out, n_stored] = &quants.shape[..] else {
            return Err(parts.refuse("no matrix of quants"));
        };
        let ty = if is_packed { TensorType::I32 } else { TensorType::I8 };
        parts.check(quants, ty, &[n_out, n_stored])?;
        let (n_in, bits) = match shape_of {
            Some(shape) => packed_shape(parts, shape, [n_out, n_stored])?,
            None => (n_stored, 8),
        };
        if n_out == 0 || n_in == 0 {
            return Err(parts.refuse("a matrix without weights"));
        }
        let scales = parts.find(names.scale)?;
        let n_groups = match *scales.shape.as_slice() {
            [rows, groups] if rows == n_out && groups > 0 && n_in.is_multiple_of(groups) => groups,
            [rows] if rows == n_out => 1,
            [] | [1] | [1, 1] => 1,
            _ => {
                let shape = &scales.shape;
                let what = format!("quants of shape [{n_out}, {n_in}] with scales {shape:?}");
                return Err(parts.refuse(&what));
            }
        };
        let group_len = n_in / n_groups;
        let shares = match (scales.n_elements(), n_groups) {
            (n, _) if n != n_out * n_groups => Shares::Tensor,
            (_, 1) => Shares::Row,
            _ => Shares::Group(group_len),
        };
        let Some(scale_values) = floats(&scales) else {
            return Err(parts.refuse(&format!("scales of type {}", scales.ty)));
        };
        let zeros = names.zero_point.and_then(|zeros| parts.find(zeros).ok());
        let has_zero_points = match zeros {
            Some(zeros) if is_packed && shares != Shares::Tensor => {
                let n_words = (n_out * bits).div_ceil(32);
                parts.check(zeros, TensorType::I32, &[n_words, n_groups])?;
                true
            }
            Some(zeros) => {
                let zeros = parts.check(zeros, TensorType::I8, &scales.shape)?;
                zeros.data.iter().any(|&zero| zero != 0)
            }
            None => false,
        };
        let groups = names.groups.and_then(|groups| parts.find(groups).ok());
        let is_reordered = match groups {
            Some(groups) => is_reordered(parts, groups, [n_in, group_len])?,
            None => false,
        };
        let ty = match (bits, has_zero_points) {
            (4, false) => Some(BlockType::Q4_0),
            (4, true) => Some(BlockType::Q4_Z),
            (8, false) => Some(BlockType::Q8_0),
            _ => None,
        };
        let ty = ty.filter(|_| group_len.is_multiple_of(BLOCK_LEN));
        let exponent = exponent_for_f16(&scale_values);
        let (ty, exponent) = ty.zip(exponent).unwrap_or((BlockType::F32, 0));
        Ok(Self {
            names,
            bits,
            is_packed,
            n_out,
            n_in,
            shares,
            n_groups,
            has_zero_points,
            ty,
            exponent,
            is_reordered,
        })
    }

    pub(super) fn bits(&self) -> usize {
        self.bits
    }

    pub(super) fn has_zero_points(&self) -> bool {
        self.has_zero_points
    }

    /// The weights that share a scale.
    pub(super) fn shares(&self) -> Shares {
        self.shares
    }

    /// Columns of the matrix.
    pub(super) fn n_in(&self) -> usize {
        self.n_in
    }

    /// What products are to be multiplied by.
    pub(super) fn factor(&self) -> f32 {
        match self.ty {
            BlockType::F32 => 1.0,
            _ => (-self.exponent as f32).exp2() / self.names.divisor,
        }
    }

    /// The inputs in the order of their groups, where the columns of the weight are in it.
    pub(super) fn order(&self, tensors: &SafeTensors, linear: &str) -> Option<Vec<u32>> {
        if !self.is_reordered || self.ty == BlockType::F32 {
            return None;
        }
        let groups = tensors.tensor(&format!("{linear}{}", self.names.groups?))?.data;
        let mut order: Vec<u32> = (0..u32::try_from(self.n_in).ok()?).collect();
        order.sort_by_key(|&input| word(&groups, input as usize));
        Some(order)
    }

    /// The weight, `[n_out, n_in]`.
    pub(super) fn weight(&self, tensors: &SafeTensors, linear: &str) -> Option<Tensor> {
        let find = |part: &str| tensors.tensor(&format!("{linear}{part}"));
        let (ty, shape) = (self.ty, [self.n_out, self.n_in]);
        let quants = match self.names.packed {
            Some((packed, _)) if self.is_packed => find(packed)?.data,
            _ => find(self.names.plain)?.data,
        };
        let scales = find(self.names.scale)?;
        let zeros = self.names.zero_point.filter(|_| self.has_zero_points).and_then(find);
        let groups = self.names.groups.filter(|_| self.is_reordered).and_then(find);
        let mut sources = vec![quants.clone(), scales.data.clone()];
        sources.extend(zeros.as_ref().map(|zeros| zeros.data.clone()));
        let source = Source {
            bits: self.bits,
            is_packed: self.is_packed,
            row_bytes: quants.len() / self.n_out,
            n_groups: self.n_groups,
            group_len: self.n_in / self.n_groups,
            is_one_scale: self.shares == Shares::Tensor,
            order: self.order(tensors, linear),
            groups: groups.map(|groups| groups.data),
            quants,
            zeros: zeros.map(|zeros| zeros.data),
        };
        let divisor = self.names.divisor;
        let factor = (self.exponent as f32).exp2();
        let n_bytes = self.n_out * ty.row_bytes(self.n_in).ok()?;
        let data = Bytes::made(sources, n_bytes, move || {
            let mut values = floats(&scales).expect("a type of scales");
            let is_f32 = ty == BlockType::F32;
            values.iter_mut().for_each(|s| *s = if is_f32 { *s / divisor } else { *s * factor });
            let linear = Linear { source: &source, scales: &values };
            match ty {
                BlockType::F32 => linear.values(shape),
                _ => groups::blocks(ty, shape, source.group_len, &linear),
            }
        });
        let name = format!("{linear}.weight");
        Some(Tensor { name, ty: ty.into(), shape: shape.to_vec(), data })
    }
}

/// Whether the inputs of groups of one length are not neighbours.
fn is_reordered(
    parts: &Parts<'_>,
    groups: Tensor,
    [n_in, group_len]: [usize; 2],
) -> Result<bool, Error> {
    let groups = parts.check(groups, TensorType::I32, &[n_in])?;
    let mut sorted: Vec<u32> = words(&groups.data).collect();
    // Where inputs have no order, all are in group -1.
    if sorted.iter().all(|&group| group == u32::MAX) {
        return Ok(false);
    }
    let is_reordered = !sorted.is_sorted();
    sorted.sort_unstable();
    if !sorted.iter().enumerate().all(|(i, &group)| group as usize == i / group_len) {
        return Err(parts.refuse(&format!("groups of other than {group_len} inputs")));
    }
    Ok(is_reordered)
}

/// The inputs and the bits of packed quants, by the shape that is stored beside them.
fn packed_shape(
    parts: &Parts<'_>,
    name: &str,
    [n_out, n_words]: [usize; 2],
) -> Result<(usize, usize), Error> {
    let shape = parts.find(name)?;
    if !matches!(shape.ty, TensorType::I32 | TensorType::I64) {
        return Err(parts.refuse(&format!("a shape of type {}", shape.ty)));
    }
    let ty = shape.ty;
    let shape = parts.check(shape, ty, &[2])?;
    let sizes: Vec<i64> = match ty {
        TensorType::I32 => words(&shape.data).map(|n| i64::from(n.cast_signed())).collect(),
        _ => shape.data.as_chunks().0.iter().map(|&n| i64::from_le_bytes(n)).collect(),
    };
    let sizes: Option<Vec<usize>> = sizes.iter().map(|&n| usize::try_from(n).ok()).collect();
    let is_of =
        |n_in: usize, bits: usize| n_in.checked_mul(bits).map(|n| n.div_ceil(32)) == Some(n_words);
    if let Some(&[rows, n_in]) = sizes.as_deref()
        && rows == n_out
        && let Some(bits) = [4, 8].into_iter().find(|&bits| is_of(n_in, bits))
    {
        return Ok((n_in, bits));
    }
    let name = name.trim_start_matches('.');
    let what = format!("`{name}` is not that of 4 or 8 bits in [{n_out}, {n_words}] words");
    Err(parts.refuse(&what))
}

/// The tensors of a linear.
struct Source {
    bits: usize,
    is_packed: bool,
    row_bytes: usize,
    n_groups: usize,
    group_len: usize,
    is_one_scale: bool,
    /// The input of each column, of blocks whose columns are in the order of groups.
    order: Option<Vec<u32>>,
    /// The group of each input, where that is not the order of the inputs.
    groups: Option<Bytes>, // [n_in]
    quants: Bytes,        // [n_out, row_bytes]
    zeros: Option<Bytes>, // [n_out / 8, n_groups], or as the scales
}

struct Linear<'a> {
    source: &'a Source,
    scales: &'a [f32], // [n_out, n_groups], or one
}

impl Linear<'_> {
    /// Half of the quants' range.
    fn half(&self) -> i32 {
        1 << (self.source.bits - 1)
    }

    fn level(&self, input: usize, output: usize) -> i32 {
        let Source { bits, is_packed, row_bytes, quants, .. } = self.source;
        let byte = quants[output * row_bytes + input * bits / 8];
        match (bits, is_packed) {
            (4, _) => i32::from(byte >> (input % 2 * 4) & 15) - 8,
            (_, true) => i32::from(byte) - 128,
            (_, false) => i32::from(byte.cast_signed()),
        }
    }

    fn scale_idx(&self, group: usize, output: usize) -> usize {
        if self.source.is_one_scale { 0 } else { output * self.source.n_groups + group }
    }

    fn zero_level(&self, group: usize, output: usize) -> i32 {
        let Source { bits, zeros, n_groups, .. } = self.source;
        let Some(zeros) = zeros else { return 0 };
        if !self.source.is_packed || self.source.is_one_scale {
            return i32::from(zeros[self.scale_idx(group, output)].cast_signed());
        }
        let per_word = 32 / bits;
        let word = word(zeros, output / per_word * n_groups + group);
        let zero = word >> (output % per_word * bits) & (u32::MAX >> (32 - bits));
        zero.cast_signed() - self.half()
    }

    /// The weights as F32, `[n_out, n_in]`.
    fn values(&self, [n_out, n_in]: [usize; 2]) -> Vec<u8> {
        let mut out = vec![0; n_out * n_in * size_of::<f32>()];
        out.par_chunks_mut(n_in * size_of::<f32>()).enumerate().for_each(|(output, row)| {
            for (input, out) in row.as_chunks_mut().0.iter_mut().enumerate() {
                let group = match &self.source.groups {
                    Some(groups) => word(groups, input) as usize,
                    None => input / self.source.group_len,
                };
                let level = self.level(input, output) - self.zero_level(group, output);
                let scale = self.scales[self.scale_idx(group, output)];
                *out = (level as f32 * scale).to_le_bytes();
            }
        });
        out
    }
}

impl Groups for Linear<'_> {
    fn quant(&self, column: usize, output: usize) -> u8 {
        let input = self.source.order.as_ref().map_or(column, |order| order[column] as usize);
        (self.level(input, output) + self.half()) as u8
    }

    fn scale(&self, group: usize, output: usize) -> [u8; 2] {
        f32_to_f16(self.scales[self.scale_idx(group, output)])
    }

    fn zero(&self, group: usize, output: usize) -> u32 {
        (self.zero_level(group, output) + self.half()).cast_unsigned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_quants_less_zero_points_times_scales() {
        let (n_out, n_in, group_len) = (16, 128, 64);
        let random = |i: usize| (i as u32).wrapping_mul(0x9e37_79b9) ^ (i << 7) as u32;
        for (bits, is_packed, ty, has_zeros) in [
            (4, true, BlockType::Q4_0, false),
            (4, true, BlockType::Q4_Z, true),
            (4, true, BlockType::F32, true),
            (8, true, BlockType::Q8_0, false),
            (8, false, BlockType::Q8_0, false),
            (8, true, BlockType::F32, true),
        ] {
            let bytes =
                |n: usize| (0..n).flat_map(|i| random(i).to_le_bytes()).collect::<Vec<u8>>();
            let quants = bytes(n_out * n_in * bits / 32);
            let zeros = bytes(n_out * bits / 32 * 2);
            let scales: Vec<f32> = (0..n_out * 2).map(|i| (1 + i) as f32 / 64.0).collect();
            let source = Source {
                bits,
                is_packed,
                row_bytes: n_in * bits / 8,
                n_groups: 2,
                group_len,
                is_one_scale: false,
                order: None,
                groups: None,
                quants: quants.clone().into(),
                zeros: has_zeros.then(|| zeros.clone().into()),
            };
            let linear = Linear { source: &source, scales: &scales };
            let blocks = match ty {
                BlockType::F32 => linear.values([n_out, n_in]),
                _ => groups::blocks(ty, [n_out, n_in], group_len, &linear),
            };
            let mut found = vec![0.0; n_out * n_in];
            realizar_quant::dequantize(ty, &blocks, &mut found).unwrap();
            // Number `i` of a run of bits, and what is added to it.
            let (mask, half) = ((1_u32 << bits) - 1, 1 << (bits - 1));
            let number = |words: &[u8], word: usize, i: usize| {
                (u32::from_le_bytes(words[4 * word..][..4].try_into().unwrap()) >> (i * bits)
                    & mask) as i32
            };
            let per_word = 32 / bits;
            for (i, found) in found.into_iter().enumerate() {
                let (row, col) = (i / n_in, i % n_in);
                let level = number(&quants, i / per_word, i % per_word);
                let level = if is_packed { level - half } else { i32::from(level as u8 as i8) };
                let zero =
                    number(&zeros, row / per_word * 2 + col / group_len, row % per_word) - half;
                let level = level - if has_zeros { zero } else { 0 };
                assert_eq!(
                    found,
                    level as f32 * scales[row * 2 + col / group_len],
                    "{ty} {row} {col}"
                );
            }
        }
    }
}
