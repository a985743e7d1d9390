//! Linears that bitsandbytes quantized, as transformers saves them.
//!
//! With 8 bits (LLM.int8, arXiv:2208.07339), `NAME.weight` has integers and `NAME.SCB` the largest magnitude of each
//! row, F32, which 127 stands for: blocks of Q8_0 whose products are divided by 127.
//!
//! With 4 bits (arXiv:2305.14314), `NAME.weight` has numbers of 4 bits in bytes, the first in the high nibble, all rows
//! in one; `NAME.weight.quant_map` what each stands for, of NF4 or of FP4; and `NAME.weight.absmax` the scale of each
//! block of numbers. Scales may themselves be bytes, for which `nested_quant_map` and `nested_absmax` are what the
//! others are for weights. `NAME.weight.quant_state.bitsandbytes__nf4` is JSON with the shape, the sizes of
//! blocks, an offset of scales, and the type that weights are widened to before they are multiplied. That they become
//! here too: the product of a level and a scale, rounded to it, is the weight, so nothing is lost.

use super::super::HfSettings;
use super::ints::{Ints, Names};
use super::{Parts, floats};
use crate::Error;
use rayon::prelude::*;
use realizar_formats::{Bytes, SafeTensors, Tensor, TensorType};
use realizar_quant::BlockType;
use realizar_quant::half_bytes::{f32_to_bf16, f32_to_f16};
use serde_json::Value;
use std::collections::BTreeMap;

const WEIGHT: &str = ".weight";
const STATES: [&str; 2] =
    [".weight.quant_state.bitsandbytes__nf4", ".weight.quant_state.bitsandbytes__fp4"];
const ABSMAX: &str = ".weight.absmax";
const QUANT_MAP: &str = ".weight.quant_map";
const NESTED_ABSMAX: &str = ".weight.nested_absmax";
const NESTED_MAP: &str = ".weight.nested_quant_map";
const ROW_PEAKS: &str = ".SCB";
/// The order of an accelerator's tiles that 8-bit files may name; 0 is that of rows.
const ORDER: &str = ".weight_format";

const INT8: Names = Names {
    packed: None,
    plain: WEIGHT,
    scale: ROW_PEAKS,
    zero_point: None,
    groups: None,
    divisor: 127.0,
};

/// How the linears of a checkpoint are quantized.
#[derive(Debug)]
pub struct BitsAndBytes {
    linears: BTreeMap<String, Layout>,
}

/// How a linear is stored.
#[derive(Debug)]
enum Layout {
    Int8(Ints),
    FourBits(FourBits),
}

impl BitsAndBytes {
    /// Reads `quantization_config`, and finds the linears.
    ///
    /// # Errors
    /// If it asks for what is not supported, or a tensor is missing, of another shape or type, or says what is not
    /// supported.
    pub(super) fn open(
        settings: &HfSettings,
        config: &HfSettings,
        tensors: &SafeTensors,
    ) -> Result<Self, Error> {
        check_settings(config)?;
        // Each occurs twice.
        let either = |keys: [&str; 2]| -> Result<bool, Error> {
            let [a, b] = keys.map(|key| config.bool_or(key, false));
            Ok(a? | b?)
        };
        let is_4_bits = either(["load_in_4bit", "_load_in_4bit"])?;
        let is_8_bits = either(["load_in_8bit", "_load_in_8bit"])?;
        if is_4_bits == is_8_bits {
            return Err(config.wrong("load_in_4bit", "true where `load_in_8bit` is not"));
        }
        let mut linears = BTreeMap::new();
        for info in tensors.tensors() {
            let state =
                STATES.iter().find_map(|state| Some((info.name.strip_suffix(state)?, *state)));
            if let Some((linear, state)) = state.filter(|_| is_4_bits) {
                let parts = Parts { settings, tensors, linear };
                let layout = Layout::FourBits(FourBits::open(&parts, state)?);
                linears.insert(linear.to_owned(), layout);
            }
            if let Some(linear) = info.name.strip_suffix(WEIGHT)
                && info.ty == TensorType::I8
                && is_8_bits
            {
                let parts = Parts { settings, tensors, linear };
                if let Ok(order) = parts.find(ORDER)
                    && order.data.iter().any(|&byte| byte != 0)
                {
                    return Err(parts.refuse("LLM.int8 in the order of tiles (`weight_format`)"));
                }
                linears.insert(linear.to_owned(), Layout::Int8(Ints::open(&parts, &INT8)?));
            }
        }
        Ok(Self { linears })
    }

    /// Whether a tensor is part of a weight of another name.
    pub(super) fn is_part(&self, name: &str) -> bool {
        let parts = [ABSMAX, QUANT_MAP, NESTED_ABSMAX, NESTED_MAP, ROW_PEAKS, ORDER];
        let linear = parts.iter().chain(&STATES).find_map(|part| name.strip_suffix(part));
        linear.is_some_and(|linear| self.linears.contains_key(linear))
    }

    /// The weight `name`, `[n_out, n_in]`, if it is that of a quantized linear.
    pub(super) fn weight(&self, tensors: &SafeTensors, name: &str) -> Option<Tensor> {
        let linear = name.strip_suffix(WEIGHT)?;
        match self.linears.get(linear)? {
            Layout::Int8(ints) => ints.weight(tensors, linear),
            Layout::FourBits(it) => it.weight(tensors, linear),
        }
    }

    /// What the products of a weight are to be multiplied by.
    pub(super) fn factor(&self, name: &str) -> f32 {
        match name.strip_suffix(WEIGHT).and_then(|linear| self.linears.get(linear)) {
            Some(Layout::Int8(ints)) => ints.factor(),
            Some(Layout::FourBits(_)) | None => 1.0,
        }
    }
}

/// Checks the settings that say how others load the model, which the tensors repeat or nothing here depends on.
fn check_settings(config: &HfSettings) -> Result<(), Error> {
    let one_of = |key: &str, values: &[&str]| match config.opt_str(key)? {
        Some(value) if !values.contains(&value) => {
            Err(config.wrong(key, format!("one of {}", values.join(", "))))
        }
        _ => Ok(()),
    };
    one_of("bnb_4bit_quant_type", &["fp4", "nf4"])?;
    one_of("bnb_4bit_compute_dtype", &["bfloat16", "float16", "float32"])?;
    config.opt_str("bnb_4bit_quant_storage")?;
    for key in [
        "bnb_4bit_use_double_quant",
        "llm_int8_has_fp16_weight",
        "llm_int8_enable_fp32_cpu_offload",
    ] {
        config.bool_or(key, false)?;
    }
    config.opt_f32("llm_int8_threshold")?;
    config.opt_strs("llm_int8_skip_modules")?;
    Ok(())
}

/// How a linear of 4 bits is stored.
#[derive(Debug, Clone, Copy)]
struct FourBits {
    n_out: usize,
    n_in: usize,
    ty: BlockType,
    /// Weights that share a scale, in the order of all rows.
    block_len: usize,
    nested: Option<Nested>,
}

/// How the scales of blocks are stored where they are bytes.
#[derive(Debug, Clone, Copy)]
struct Nested {
    /// Scales that share one of their own.
    block_len: usize,
    /// What is added to each.
    offset: f32,
}

impl FourBits {
    fn open(parts: &Parts<'_>, state: &str) -> Result<Self, Error> {
        let wrong =
            |key: &str| parts.refuse(&format!("`{key}` of `{}`", state.trim_start_matches('.')));
        let json = parts.find(state)?;
        let json = parts.check(json.clone(), TensorType::U8, &[json.data.len()])?;
        let json: Value = serde_json::from_slice(&json.data)
            .map_err(|error| wrong(&format!("JSON ({error})")))?;
        let size = |key: &str| {
            let found = json.get(key).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
            found.filter(|&n| n > 0).ok_or_else(|| wrong(key))
        };
        let shape = json.get("shape").and_then(Value::as_array).ok_or_else(|| wrong("shape"))?;
        let shape: Option<Vec<usize>> =
            shape.iter().map(|n| n.as_u64().and_then(|n| usize::try_from(n).ok())).collect();
        let Some(&[n_out, n_in]) = shape.as_deref() else { return Err(wrong("shape")) };
        let n = n_out.checked_mul(n_in).filter(|&n| n > 0 && n.is_multiple_of(2));
        let n = n.ok_or_else(|| wrong("shape"))?;
        let kind = json.get("quant_type").and_then(Value::as_str).unwrap_or_default();
        if !["fp4", "nf4"].contains(&kind) || !state.ends_with(kind) {
            return Err(wrong("quant_type"));
        }
        let ty = match json.get("dtype").and_then(Value::as_str) {
            Some("bfloat16") => BlockType::BF16,
            Some("float16") => BlockType::F16,
            Some("float32") => BlockType::F32,
            _ => return Err(wrong("dtype")),
        };
        let block_len = size("blocksize")?;
        let weight = parts.find(WEIGHT)?;
        let is_weight = matches!(weight.ty, TensorType::U8 | TensorType::I8 | TensorType::Block(_));
        // Storage may be of any type, such as BF16 for training.
        if !is_weight || weight.data.len() != n / 2 {
            let (found, ty) = (&weight.shape, weight.ty);
            return Err(
                parts.refuse(&format!("4 bits of shape [{n_out}, {n_in}] in {found:?} of {ty}"))
            );
        }
        parts.check(parts.find(QUANT_MAP)?, TensorType::Block(BlockType::F32), &[16])?;
        let n_blocks = n.div_ceil(block_len);
        let absmax = parts.find(ABSMAX)?;
        let nested = if absmax.ty == TensorType::U8 {
            let block_len = size("nested_blocksize")?;
            let offset = json.get("nested_offset").and_then(Value::as_f64);
            let offset = offset.ok_or_else(|| wrong("nested_offset"))? as f32;
            let f32 = TensorType::Block(BlockType::F32);
            parts.check(parts.find(NESTED_MAP)?, f32, &[256])?;
            parts.check(parts.find(NESTED_ABSMAX)?, f32, &[n_blocks.div_ceil(block_len)])?;
            Some(Nested { block_len, offset })
        } else {
            None
        };
        let absmax_ty =
            if nested.is_some() { TensorType::U8 } else { TensorType::Block(BlockType::F32) };
        parts.check(absmax, absmax_ty, &[n_blocks])?;
        Ok(Self { n_out, n_in, ty, block_len, nested })
    }

    /// The weight, `[n_out, n_in]`.
    fn weight(&self, tensors: &SafeTensors, linear: &str) -> Option<Tensor> {
        let find = |part: &str| tensors.tensor(&format!("{linear}{part}"));
        let this = *self;
        let (quants, absmax) = (find(WEIGHT)?.data, find(ABSMAX)?);
        let levels = floats(&find(QUANT_MAP)?)?;
        let nested = match this.nested {
            Some(nested) => Some((nested, floats(&find(NESTED_MAP)?)?, find(NESTED_ABSMAX)?)),
            None => None,
        };
        let n = this.n_out * this.n_in;
        let sources = vec![quants.clone(), absmax.data.clone()];
        let data = Bytes::made(sources, n * this.ty.block_bytes(), move || {
            let scales = match &nested {
                Some((nested, levels, scales)) => {
                    let scales = floats(scales).expect("F32");
                    let of = |(i, &quant): (usize, &u8)| {
                        levels[usize::from(quant)] * scales[i / nested.block_len] + nested.offset
                    };
                    absmax.data.iter().enumerate().map(of).collect()
                }
                None => floats(&absmax).expect("F32"),
            };
            this.values(&quants, &levels, &scales)
        });
        let shape = vec![self.n_out, self.n_in];
        Some(Tensor { name: format!("{linear}{WEIGHT}"), ty: this.ty.into(), shape, data })
    }

    /// The weights, level times scale.
    fn values(&self, quants: &[u8], levels: &[f32], scales: &[f32]) -> Vec<u8> {
        let size = self.ty.block_bytes();
        let mut out = vec![0; quants.len() * 2 * size];
        out.par_chunks_mut(2 * size * 4096).enumerate().for_each(|(run, out)| {
            for (i, out) in out.chunks_exact_mut(size).enumerate() {
                let i = run * 2 * 4096 + i;
                let quant = quants[i / 2] >> (if i.is_multiple_of(2) { 4 } else { 0 }) & 15;
                let value = levels[usize::from(quant)] * scales[i / self.block_len];
                match self.ty {
                    BlockType::BF16 => out.copy_from_slice(&f32_to_bf16(value)),
                    BlockType::F16 => out.copy_from_slice(&f32_to_f16(value)),
                    _ => out.copy_from_slice(&value.to_le_bytes()),
                }
            }
        });
        out
    }
}
