//! Linears in FP8: `NAME.weight` of `E4M3` or `E5M2`, and `NAME.weight_scale_inv` or `NAME.weight_scale`, by which
//! the numbers are multiplied, whatever it is called. There is one scale for each tile of a matrix
//! (128 × 128 in the files of DeepSeek and Qwen, `weight_block_size`), for each row, or for all.
//!
//! Those of `E4M3` become blocks of F8_0, each with the scale of its tile. `E5M2` is the upper half of an F16, so with
//! one scale for all a matrix is one of F16 whose products have a factor; with more it is one of F32, the only type that
//! holds its products with scales. Files that were made for activations
//! in FP8 may have scales for these too, `NAME.input_scale`; activations are not rounded to FP8 here, so
//! nothing reads them.

use super::super::HfSettings;
use super::{Parts, floats};
use crate::Error;
use rayon::prelude::*;
use realizar_formats::{Bytes, SafeTensors, Tensor, TensorType};
use realizar_quant::BlockType;
use realizar_quant::half_bytes::f16_to_f32;
use realizar_quant::small_floats::e4m3_is_nan;
use std::collections::BTreeMap;

const TY: BlockType = BlockType::F8_0;
const BLOCK_LEN: usize = TY.block_len();
const BLOCK_BYTES: usize = TY.block_bytes();
/// Bytes of a block's scale.
const SCALE_BYTES: usize = 4;

/// What the tensors of a linear end in.
#[derive(Debug)]
pub(super) struct Names {
    /// The numbers.
    pub(super) weight: &'static str,
    /// The scales, by the first of these that there is.
    pub(super) scales: &'static [&'static str],
}

const NAMES: Names = Names { weight: ".weight", scales: &[".weight_scale_inv", ".weight_scale"] };
/// What files have beside a linear for activations.
const OF_ACTIVATIONS: [&str; 2] = [".input_scale", ".output_scale"];

/// How the linears of a checkpoint are stored as FP8.
#[derive(Debug)]
pub struct Fp8 {
    /// Rows and columns of a tile, where a linear has tiles.
    tile: Option<[usize; 2]>,
    names: &'static Names,
    /// The linears, sorted.
    linears: Vec<String>,
    /// The one scale of linears of `E5M2` that have no more.
    factors: BTreeMap<String, f32>,
}

impl Fp8 {
    /// Reads what says how large tiles are, and finds the linears.
    ///
    /// # Errors
    /// If a linear has no scales, scales of another shape or type, or rows or tiles that are not whole
    /// blocks.
    pub(super) fn open(
        settings: &HfSettings,
        config: &HfSettings,
        tensors: &SafeTensors,
    ) -> Result<Self, Error> {
        let tile = match config.opt_usizes("weight_block_size")?.as_deref() {
            None => None,
            Some(&[rows, cols]) if rows > 0 && cols > 0 => Some([rows, cols]),
            Some(other) => return Err(config.unsupported(format!("FP8 with tiles of {other:?}"))),
        };
        match config.opt_str("activation_scheme")? {
            None | Some("dynamic" | "static") => {}
            Some(_) => return Err(config.wrong("activation_scheme", "`dynamic` or `static`")),
        }
        for key in ["ignored_layers", "modules_to_not_convert"] {
            config.opt_strs(key)?;
        }
        Self::find(settings, tile, tensors)
    }

    /// Finds the linears, of which those with tiles have such ones.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(super) fn find(
        settings: &HfSettings,
        tile: Option<[usize; 2]>,
        tensors: &SafeTensors,
    ) -> Result<Self, Error> {
        Self::find_named(settings, tile, tensors, &NAMES)
    }

    /// Finds the linears whose tensors have these names.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(super) fn find_named(
        settings: &HfSettings,
        tile: Option<[usize; 2]>,
        tensors: &SafeTensors,
        names: &'static Names,
    ) -> Result<Self, Error> {
        let is_fp8 = |ty| matches!(ty, TensorType::F8E4M3 | TensorType::F8E5M2);
        let stored = tensors.tensors().iter().filter(|info| is_fp8(info.ty));
        let mut linears: Vec<String> = stored
            .filter_map(|info| Some(info.name.strip_suffix(names.weight)?.to_owned()))
            .collect();
        linears.sort_unstable();
        let mut fp8 = Self { tile, names, linears, factors: BTreeMap::new() };
        let mut factors = BTreeMap::new();
        for linear in &fp8.linears {
            if let Some(factor) = fp8.check(&Parts { settings, tensors, linear })? {
                factors.insert(linear.clone(), factor);
            }
        }
        fp8.factors = factors;
        Ok(fp8)
    }

    /// The linears, sorted.
    pub(super) fn linears(&self) -> &[String] {
        &self.linears
    }

    fn has(&self, linear: &str) -> bool {
        self.linears.binary_search_by(|name| name.as_str().cmp(linear)).is_ok()
    }

    /// Whether a tensor is beside the weight of a linear.
    pub(super) fn is_part(&self, name: &str) -> bool {
        let weight = (self.names.weight != NAMES.weight).then_some(&self.names.weight);
        let mut ends = self.names.scales.iter().chain(&OF_ACTIVATIONS).chain(weight);
        ends.any(|part| name.strip_suffix(part).is_some_and(|linear| self.has(linear)))
    }

    /// The factor of a linear of `E5M2` with one scale.
    fn check(&self, parts: &Parts<'_>) -> Result<Option<f32>, Error> {
        let weight = parts.find(self.names.weight)?;
        let &[n_out, n_in] = &weight.shape[..] else {
            return Err(parts.refuse("FP8 that is no matrix"));
        };
        let is_e5m2 = weight.ty == TensorType::F8E5M2;
        let mut scales = self.names.scales.iter().map(|scales| parts.find(scales));
        let scales = match scales.find(Result::is_ok) {
            Some(scales) => scales?,
            None => parts.find(self.names.scales[0])?,
        };
        if !matches!(
            scales.ty.block_type(),
            Some(BlockType::F32 | BlockType::BF16 | BlockType::F16)
        ) {
            let what = format!("FP8 with scales of type {}", scales.ty);
            return Err(parts.refuse(&what));
        }
        let Some([_, tile_cols]) = self.tile_of([n_out, n_in], &scales.shape) else {
            let (shape, tile) = (&scales.shape, self.tile);
            let of = tile.map_or(String::new(), |[r, c]| format!(" for tiles of {r} x {c}"));
            let what = format!("FP8 of shape [{n_out}, {n_in}] with scales {shape:?}{of}");
            return Err(parts.refuse(&what));
        };
        if is_e5m2 {
            let has_one = scales.n_elements() == 1;
            return Ok(floats(&scales).filter(|_| has_one).map(|scales| scales[0]));
        }
        if !n_in.is_multiple_of(BLOCK_LEN)
            || tile_cols < n_in && !tile_cols.is_multiple_of(BLOCK_LEN)
        {
            let what = format!(
                "FP8 with rows of {n_in} and tiles of {tile_cols} columns, which are \
                                not multiples of {BLOCK_LEN}"
            );
            return Err(parts.refuse(&what));
        }
        Ok(None)
    }

    /// What the products of a weight are to be multiplied by.
    pub(super) fn factor(&self, name: &str) -> f32 {
        let linear = name.strip_suffix(NAMES.weight);
        linear.and_then(|linear| self.factors.get(linear)).copied().unwrap_or(1.0)
    }

    /// The rows and columns that share a scale.
    fn tile_of(&self, [n_out, n_in]: [usize; 2], scales: &[usize]) -> Option<[usize; 2]> {
        if let Some([rows, cols]) = self.tile
            && scales == [n_out.div_ceil(rows), n_in.div_ceil(cols)]
        {
            return Some([rows, cols]);
        }
        match *scales {
            [] | [1] | [1, 1] => Some([n_out.max(1), n_in.max(1)]),
            [n] | [n, 1] if n == n_out => Some([1, n_in.max(1)]),
            _ => None,
        }
    }

    /// The weight `name`, `[n_out, n_in]`, if it is that of a linear in FP8.
    pub(super) fn weight(&self, tensors: &SafeTensors, name: &str) -> Option<Tensor> {
        let linear = name.strip_suffix(NAMES.weight).filter(|linear| self.has(linear))?;
        let weight = tensors.tensor(&format!("{linear}{}", self.names.weight))?;
        let mut scales =
            self.names.scales.iter().map(|part| tensors.tensor(&format!("{linear}{part}")));
        let scales = scales.find_map(|scales| scales)?;
        let &[n_out, n_in] = &weight.shape[..] else { return None };
        let matrix = Linear {
            n_in,
            tile: self.tile_of([n_out, n_in], &scales.shape)?,
            numbers: weight.data.clone(),
            scale_ty: scales.ty.block_type()?,
            scales: scales.data.clone(),
        };
        let ty = match weight.ty {
            TensorType::F8E5M2 if self.factors.contains_key(linear) => BlockType::F16,
            TensorType::F8E5M2 => BlockType::F32,
            _ => TY,
        };
        let n_bytes = n_out * ty.row_bytes(n_in).ok()?;
        let sources = vec![weight.data, scales.data];
        let data = Bytes::made(sources, n_bytes, move || match ty {
            BlockType::F16 => matrix.halves(),
            BlockType::F32 => matrix.floats(),
            _ => matrix.blocks(),
        });
        let name = name.to_owned();
        Some(Tensor { name, ty: ty.into(), data, ..weight })
    }
}

/// A matrix in FP8.
struct Linear {
    n_in: usize,
    tile: [usize; 2],
    numbers: Bytes, // [n_out, n_in]
    scale_ty: BlockType,
    scales: Bytes, // [n_out / rows of a tile, n_in / columns of a tile], rounded up
}

impl Linear {
    /// The scales as F32.
    fn scales(&self) -> Vec<f32> {
        let mut scales = vec![0.0; self.scales.len() / self.scale_ty.block_bytes()];
        realizar_quant::dequantize(self.scale_ty, &self.scales, &mut scales)
            .expect("the bytes are those of the scales");
        scales
    }

    /// The numbers of `E5M2` as F16, without the scale.
    fn halves(&self) -> Vec<u8> {
        self.numbers.iter().flat_map(|&bits| [0, bits]).collect()
    }

    /// The numbers of `E5M2` times their scales as F32.
    fn floats(&self) -> Vec<u8> {
        let [tile_rows, tile_cols] = self.tile;
        let scales = self.scales();
        let scales_of_row = self.n_in.div_ceil(tile_cols);
        let mut out = vec![0; self.numbers.len() * size_of::<f32>()];
        if self.n_in == 0 {
            return out;
        }
        let rows = out.par_chunks_mut(self.n_in * size_of::<f32>());
        rows.zip(self.numbers.par_chunks(self.n_in)).enumerate().for_each(
            |(row, (out, numbers))| {
                let scales = &scales[row / tile_rows * scales_of_row..];
                for (i, (out, &bits)) in out.as_chunks_mut().0.iter_mut().zip(numbers).enumerate() {
                    *out = (f16_to_f32([0, bits]) * scales[i / tile_cols]).to_le_bytes();
                }
            },
        );
        out
    }

    /// Its rows as blocks of F8_0, `[n_out, n_in]`.
    fn blocks(&self) -> Vec<u8> {
        let row_bytes = self.n_in / BLOCK_LEN * BLOCK_BYTES;
        let [tile_rows, tile_cols] = self.tile;
        let scales = self.scales();
        if row_bytes == 0 {
            return Vec::new();
        }
        let mut out = vec![0; self.numbers.len() / self.n_in * row_bytes];
        let scales_of_row = self.n_in.div_ceil(tile_cols);
        let rows = out.par_chunks_mut(row_bytes).zip(self.numbers.par_chunks(self.n_in));
        rows.enumerate().for_each(|(row, (out, numbers))| {
            let scales = &scales[row / tile_rows * scales_of_row..];
            let blocks = out.chunks_exact_mut(BLOCK_BYTES).zip(numbers.chunks_exact(BLOCK_LEN));
            for (i, (out, numbers)) in blocks.enumerate() {
                // A row with a number that is NaN has no product but NaN; so has this one.
                let is_nan = numbers.iter().any(|&bits| e4m3_is_nan(bits));
                let scale = if is_nan { f32::NAN } else { scales[i * BLOCK_LEN / tile_cols] };
                let (d, qs) = out.split_at_mut(SCALE_BYTES);
                d.copy_from_slice(&scale.to_le_bytes());
                qs.copy_from_slice(numbers);
            }
        });
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of a matrix of three rows and 128 columns, of numbers that are 1 in row 0, 1.5 in
    /// row 1 and -448 in row 2.
    fn values(tile: [usize; 2], scales: &[f32]) -> Vec<f32> {
        let numbers: Vec<u8> = [0x38, 0x3c, 0xfe].into_iter().flat_map(|q| [q; 128]).collect();
        let linear = Linear {
            n_in: 128,
            tile,
            numbers: numbers.into(),
            scale_ty: BlockType::F32,
            scales: scales.iter().flat_map(|d| d.to_le_bytes()).collect::<Vec<u8>>().into(),
        };
        let mut values = vec![0.0; 3 * 128];
        realizar_quant::dequantize(TY, &linear.blocks(), &mut values).unwrap();
        values
    }

    #[test]
    fn scales_are_those_of_the_tile() {
        let check = |tile, scales: &[f32], expected: [[f32; 2]; 3]| {
            let found = values(tile, scales);
            for (i, value) in found.into_iter().enumerate() {
                assert_eq!(value, expected[i / 128][i % 128 / 64], "{tile:?}: {i}");
            }
        };
        let all = [[2.0, 2.0], [3.0, 3.0], [-896.0, -896.0]];
        check([3, 128], &[2.0], all);
        check([1, 128], &[1.0, 2.0, 0.5], [[1.0, 1.0], [3.0, 3.0], [-224.0, -224.0]]);
        // Two rows and 64 columns; the last tile has one row.
        let tiles = [[1.0, 2.0], [1.5, 3.0], [-1344.0, -1792.0]];
        check([2, 64], &[1.0, 2.0, 3.0, 4.0], tiles);
    }

    #[test]
    fn e5m2_is_the_upper_half_of_f16() {
        // 1, -1.75, the largest, the least, infinity and NaN.
        let numbers = [0x3c, 0xbf, 0x7b, 0x01, 0x7c, 0x7e];
        let linear = |tile, scales: &[f32]| Linear {
            n_in: 3,
            tile,
            numbers: numbers.to_vec().into(),
            scale_ty: BlockType::F32,
            scales: scales.iter().flat_map(|d| d.to_le_bytes()).collect::<Vec<u8>>().into(),
        };
        let values = |ty, bytes: Vec<u8>| {
            let mut values = vec![0.0; 6];
            realizar_quant::dequantize(ty, &bytes, &mut values).unwrap();
            values
        };
        let least = (-16.0_f32).exp2();
        let halves = values(BlockType::F16, linear([2, 3], &[3.0]).halves());
        assert_eq!(halves[..5], [1.0, -1.75, 57344.0, least, f32::INFINITY]);
        assert!(halves[5].is_nan());
        // A scale of each row, and of tiles of two columns of which the last is cut off.
        let rows = values(BlockType::F32, linear([1, 3], &[3.0, 0.5]).floats());
        assert_eq!(rows[..5], [3.0, -5.25, 172_032.0, least / 2.0, f32::INFINITY]);
        let tiles = values(BlockType::F32, linear([2, 2], &[3.0, 0.1]).floats());
        assert_eq!(tiles[..5], [3.0, -5.25, 57344.0 * 0.1, 3.0 * least, f32::INFINITY]);
        assert!(rows[5].is_nan() && tiles[5].is_nan());
    }

    #[test]
    fn nan_makes_its_block_nan() {
        let mut numbers = vec![0x38; 128];
        numbers[70] = 0xff;
        let linear = Linear {
            n_in: 128,
            tile: [1, 128],
            numbers: numbers.into(),
            scale_ty: BlockType::BF16,
            scales: realizar_quant::half_bytes::f32_to_bf16(0.5).to_vec().into(),
        };
        let mut values = vec![0.0; 128];
        realizar_quant::dequantize(TY, &linear.blocks(), &mut values).unwrap();
        assert!(values[..64].iter().all(|v| *v == 0.5) && values[64..].iter().all(|v| v.is_nan()));
    }
}
