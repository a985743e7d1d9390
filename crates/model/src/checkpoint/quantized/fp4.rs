//! Linears of FP4: bytes of two numbers (`E2M1`), the first in the low nibble, `[out, in / 2]`, and
//! `NAME.weight_scale`, scales of groups of inputs, `[out, groups]`: FP8 (`E4M3`) for groups
//! of 16, which are multiplied or divided by a scale of the whole matrix, which is NVFP4, or powers of two (`E8M0`)
//! for groups of 32, which is MXFP4. How tensors are called is up to the method.
//!
//! They become the blocks of the same names, which have the same numbers in another order. The scale of the whole
//! matrix of NVFP4 is a factor on its products.

use super::{Parts, floats};
use crate::Error;
use rayon::prelude::*;
use realizar_formats::{Bytes, SafeTensors, Tensor, TensorType};
use realizar_quant::BlockType;
use realizar_quant::small_floats::e4m3_is_nan;

const WEIGHT: &str = ".weight";
const SCALE: &str = ".weight_scale";

/// What the tensors of a linear end in.
#[derive(Debug)]
pub(super) struct Names {
    /// The numbers.
    pub(super) packed: &'static str,
    /// The scale of a whole matrix of NVFP4.
    pub(super) global: &'static str,
    /// Whether the scales of groups are divided by it; else they are multiplied.
    pub(super) divides: bool,
    /// Whether a matrix without it is one of MXFP4.
    pub(super) may_lack: bool,
}

/// How a linear of FP4 is stored.
#[derive(Debug)]
pub(super) struct Fp4 {
    names: &'static Names,
    ty: BlockType,
    n_out: usize,
    n_in: usize,
    factor: f32,
}

impl Fp4 {
    /// Reads the shapes of a linear's tensors.
    ///
    /// # Errors
    /// If a tensor is missing, of another shape or type, or does not hold the scales that its blocks can have.
    pub(super) fn open(parts: &Parts<'_>, names: &'static Names) -> Result<Self, Error> {
        let quants = parts.find(names.packed)?;
        let &[n_out, n_bytes] = &quants.shape[..] else {
            return Err(parts.refuse("FP4 with no matrix of numbers"));
        };
        parts.check(quants, TensorType::U8, &[n_out, n_bytes])?;
        let n_in = n_bytes * 2;
        let is_nv = !names.may_lack || parts.find(names.global).is_ok();
        let (ty, scale_ty, group_len) = match is_nv {
            true => (BlockType::NVFP4, TensorType::F8E4M3, 16),
            false => (BlockType::MXFP4, TensorType::U8, 32),
        };
        if n_out == 0 || n_in == 0 || !n_in.is_multiple_of(ty.block_len()) {
            let len = ty.block_len();
            return Err(parts.refuse(&format!("{ty} with {n_in} inputs, not a multiple of {len}")));
        }
        let scales = parts.check(parts.find(SCALE)?, scale_ty, &[n_out, n_in / group_len])?;
        // A scale is a size: neither below zero, nor what stands for no number.
        let is_size =
            |&bits: &u8| if is_nv { bits < 0x80 && !e4m3_is_nan(bits) } else { bits != 0xff };
        if !scales.data.par_iter().all(is_size) {
            return Err(parts.refuse(&format!("{ty} with scales that are no sizes")));
        }
        let factor = if is_nv { factor(parts, names)? } else { 1.0 };
        Ok(Self { names, ty, n_out, n_in, factor })
    }

    /// Inputs that share a scale.
    pub(super) fn group_len(&self) -> usize {
        if self.ty == BlockType::NVFP4 { 16 } else { 32 }
    }

    /// Columns of the matrix.
    pub(super) fn n_in(&self) -> usize {
        self.n_in
    }

    /// What products are to be multiplied by.
    pub(super) fn factor(&self) -> f32 {
        self.factor
    }

    /// The weight, `[n_out, n_in]`.
    pub(super) fn weight(&self, tensors: &SafeTensors, linear: &str) -> Option<Tensor> {
        let [quants, scales] = [self.names.packed, SCALE]
            .map(|part| tensors.tensor(&format!("{linear}{part}")).map(|it| it.data));
        let (quants, scales) = (quants?, scales?);
        let Self { ty, n_out, n_in, .. } = *self;
        let sources = vec![quants.clone(), scales.clone()];
        let n_bytes = n_out * ty.row_bytes(n_in).ok()?;
        let data = Bytes::made(sources, n_bytes, move || blocks(ty, n_in, &quants, &scales));
        let name = format!("{linear}{WEIGHT}");
        Some(Tensor { name, ty: ty.into(), shape: vec![n_out, n_in], data })
    }
}

/// The factor that the scale of the whole matrix stands for.
fn factor(parts: &Parts<'_>, names: &Names) -> Result<f32, Error> {
    let scale = parts.find(names.global)?;
    match floats(&scale).as_deref() {
        Some(&[scale]) if scale.is_finite() && scale > 0.0 => {
            Ok(if names.divides { 1.0 / scale } else { scale })
        }
        found => {
            let name = &names.global[1..];
            Err(parts.refuse(&format!("`{name}` of {found:?}, not one number above 0")))
        }
    }
}

/// Rows as blocks of NVFP4 or MXFP4.
fn blocks(ty: BlockType, n_in: usize, quants: &[u8], scales: &[u8]) -> Vec<u8> {
    let (n_scales, half) = if ty == BlockType::NVFP4 { (4, 8) } else { (1, 16) };
    let block_bytes = ty.block_bytes();
    let mut out =
        vec![0; n_in.max(1) / ty.block_len() * block_bytes * (quants.len() * 2 / n_in.max(1))];
    let blocks = out.par_chunks_exact_mut(block_bytes).zip(scales.par_chunks_exact(n_scales));
    let blocks = blocks.zip(quants.par_chunks_exact(ty.block_len() / 2));
    blocks.for_each(|((out, scales), quants)| {
        let (head, out) = out.split_at_mut(n_scales);
        head.copy_from_slice(scales);
        // Of the numbers that share a scale, the first half lies in low nibbles.
        for (out, quants) in out.chunks_exact_mut(half).zip(quants.chunks_exact(half)) {
            let number = |i: usize| quants[i / 2] >> (i % 2 * 4) & 15;
            for (i, out) in out.iter_mut().enumerate() {
                *out = number(i) | number(i + half) << 4;
            }
        }
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use realizar_quant::codebook::FP4;

    #[test]
    fn blocks_hold_the_numbers() {
        let random = |i: usize| ((i as u32).wrapping_mul(0x9e37_79b9) >> 11) as u8;
        let quants: Vec<u8> = (0..128).map(random).collect();
        for (ty, group_len) in [(BlockType::NVFP4, 16), (BlockType::MXFP4, 32)] {
            // 1, 1.125, 1.25, … and 1, 2, 4, ….
            let is_nv = ty == BlockType::NVFP4;
            let first = if is_nv { 0x38 } else { 127 };
            let scales: Vec<u8> = (0..256 / group_len).map(|i| first + i as u8 % 8).collect();
            let mut found = vec![0.0; 256];
            realizar_quant::dequantize(ty, &blocks(ty, 128, &quants, &scales), &mut found).unwrap();
            for (i, found) in found.into_iter().enumerate() {
                let step = (i / group_len % 8) as f32;
                let scale = if is_nv { 1.0 + step / 8.0 } else { step.exp2() };
                let number = f32::from(FP4[usize::from(quants[i / 2] >> (i % 2 * 4) & 15)]) / 2.0;
                assert_eq!(found, number * scale, "{ty} {i}");
            }
        }
    }
}
