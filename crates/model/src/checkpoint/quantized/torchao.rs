//! Linears that torchao quantized, as transformers saves them in safetensors: the tensors inside a weight under names of
//! their own, and in the files' metadata the kind of each.
//!
//! `NAME._weight_qdata` has 8-bit integers, which may be of fewer bits, or FP8 (`E4M3`, `E5M2`), `[out, in]`;
//! `NAME._weight_scale` scales of rows, groups or all weights, and `NAME._weight_zero_point` what stands for zero.
//! Integers become blocks as those of other methods do, and so does FP8. What is said of activations is how others
//! run the model. Packed 4-bit integers, whose order is that of an accelerator's kernels, are refused.

use super::super::HfSettings;
use super::Parts;
use super::fp8::{self, Fp8};
use super::ints::{Ints, Names};
use crate::Error;
use realizar_formats::{SafeTensors, Tensor, TensorType};
use std::collections::BTreeMap;

const WEIGHT: &str = ".weight";
const QUANTS: &str = "._weight_qdata";
const SCALE: &str = "._weight_scale";
const ZERO_POINT: &str = "._weight_zero_point";
/// How the tensors of other kinds end.
const OTHERS: [&str; 3] =
    ["._weight_scale_and_zero", "._weight_per_tensor_scale", "._weight_act_pre_scale"];

const INTS: Names = Names {
    packed: None,
    plain: QUANTS,
    scale: SCALE,
    zero_point: Some(ZERO_POINT),
    groups: None,
    divisor: 1.0,
};

/// How the linears of a checkpoint are quantized.
#[derive(Debug)]
pub struct TorchAo {
    ints: BTreeMap<String, Ints>,
    fp8: Fp8,
    /// The names of the weights, none of which is that of a stored tensor.
    weights: Vec<String>,
}

impl TorchAo {
    /// Reads `quantization_config`, and finds the linears.
    ///
    /// # Errors
    /// If it asks for what is not supported, or a tensor is missing, or of another shape or type.
    pub(super) fn open(
        settings: &HfSettings,
        config: &HfSettings,
        tensors: &SafeTensors,
    ) -> Result<Self, Error> {
        let quantization = match config.opt_str("quant_type") {
            Ok(Some(name)) => name.to_owned(),
            _ => kinds(config)?,
        };
        for key in ["include_input_output_embeddings", "untie_embedding_weights"] {
            config.bool_or(key, false)?;
        }
        config.opt_strs("modules_to_not_convert")?;
        config.opt_object("quant_type_kwargs")?;
        let (mut ints, mut weights) = (BTreeMap::new(), Vec::new());
        for info in tensors.tensors() {
            let other = OTHERS.iter().find_map(|part| info.name.strip_suffix(part));
            let linear = info.name.strip_suffix(QUANTS).or(other);
            let Some(linear) = linear else { continue };
            let parts = Parts { settings, tensors, linear };
            if other.is_some() {
                return Err(parts.refuse(&format!("torchao with `{}` ({quantization})", info.name)));
            }
            match info.ty {
                TensorType::I8 => {
                    // Two numbers in a byte show in the scales, which are transposed too.
                    let layout = Ints::open(&parts, &INTS).map_err(|error| match error {
                        Error::Unsupported { .. } => {
                            parts.refuse(&format!("torchao in another layout ({quantization})"))
                        }
                        other => other,
                    })?;
                    ints.insert(linear.to_owned(), layout);
                }
                TensorType::F8E4M3 | TensorType::F8E5M2 => {}
                ty => {
                    return Err(
                        parts.refuse(&format!("torchao with quants of {ty} ({quantization})"))
                    );
                }
            }
            weights.push(format!("{linear}{WEIGHT}"));
        }
        let fp8 = Fp8::find_named(
            settings,
            None,
            tensors,
            &fp8::Names { weight: QUANTS, scales: &[SCALE] },
        )?;
        Ok(Self { ints, fp8, weights })
    }

    pub(super) fn weights(&self) -> &[String] {
        &self.weights
    }

    /// Whether a tensor is part of a weight of another name.
    pub(super) fn is_part(&self, name: &str) -> bool {
        let linear = [QUANTS, SCALE, ZERO_POINT].iter().find_map(|part| name.strip_suffix(part));
        linear.is_some_and(|it| self.ints.contains_key(it)) || self.fp8.is_part(name)
    }

    /// The weight `name`, `[n_out, n_in]`, if it is that of a quantized linear.
    pub(super) fn weight(&self, tensors: &SafeTensors, name: &str) -> Option<Tensor> {
        let linear = name.strip_suffix(WEIGHT)?;
        match self.ints.get(linear) {
            Some(ints) => ints.weight(tensors, linear),
            None => self.fp8.weight(tensors, name),
        }
    }

    /// What the products of a weight are to be multiplied by.
    pub(super) fn factor(&self, name: &str) -> f32 {
        let ints = name.strip_suffix(WEIGHT).and_then(|linear| self.ints.get(linear));
        ints.map_or_else(|| self.fp8.factor(name), Ints::factor)
    }
}

/// The names of torchao's configurations in `quant_type`.
fn kinds(config: &HfSettings) -> Result<String, Error> {
    let kinds = config.opt_object("quant_type")?;
    let kinds = kinds.ok_or_else(|| config.wrong("quant_type", "an object"))?;
    let kind = |name: &String| {
        let kind = kinds.opt_object(name)?.ok_or_else(|| kinds.wrong(name, "an object"))?;
        kind.opt_object("_data")?;
        kind.opt_usize("_version")?;
        Ok(kind.str("_type")?.to_owned())
    };
    let names: Result<Vec<String>, Error> = kinds.map().keys().map(kind).collect();
    Ok(names?.join(", "))
}
