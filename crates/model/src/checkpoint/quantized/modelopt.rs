//! Linears as NVIDIA's ModelOpt exports them (the library's `export/quant_utils.py` says what its tensors mean).
//!
//! NVFP4: `NAME.weight`, bytes of two numbers, `[out, in / 2]`; `NAME.weight_scale`, FP8 (`E4M3`) for groups of 16
//! inputs; and `NAME.weight_scale_2`, by which all of them are multiplied ([`Fp4`]). FP8: `NAME.weight` and
//! `NAME.weight_scale`, one for the matrix or for each row ([`Fp8`]). Which linears are quantized, and how, shows in
//! their tensors. `NAME.input_scale` and what is said of activations and of the key-value cache are how others run the
//! model. The settings are `quantization_config` of config.json, or of earlier releases `hf_quant_config.json` beside it.

use super::super::HfSettings;
use super::Parts;
use super::fp4::{self, Fp4};
use super::fp8::Fp8;
use crate::Error;
use realizar_formats::{SafeTensors, Tensor, TensorType};
use std::collections::BTreeMap;

const WEIGHT: &str = ".weight";
/// What is beside the numbers of a linear of FP4.
const PARTS: [&str; 3] = [".weight_scale", ".weight_scale_2", ".input_scale"];
/// How linears may be stored, by `quant_algo`.
const ALGORITHMS: [&str; 4] = ["FP8", "FP8_PER_CHANNEL_PER_TOKEN", "MIXED_PRECISION", "NVFP4"];
/// Inputs of a group of NVFP4.
const GROUP_LEN: usize = 16;

const FP4: fp4::Names =
    fp4::Names { packed: WEIGHT, global: ".weight_scale_2", divides: false, may_lack: false };

/// How the linears of a checkpoint are quantized.
#[derive(Debug)]
pub struct ModelOpt {
    fp4: BTreeMap<String, Fp4>,
    fp8: Fp8,
}

impl ModelOpt {
    /// The settings of a directory whose config.json has none, if there are some beside it.
    ///
    /// # Errors
    /// If the file is malformed.
    pub(super) fn beside(settings: &HfSettings) -> Result<Option<HfSettings>, Error> {
        let path = settings.path().with_file_name("hf_quant_config.json");
        if !path.is_file() {
            return Ok(None);
        }
        let file = HfSettings::open(&path)?;
        let config = file.opt_object("quantization")?;
        config.map(Some).ok_or_else(|| file.wrong("quantization", "an object"))
    }

    /// Checks the settings, and finds the linears.
    ///
    /// # Errors
    /// If they ask for what is not supported, or a tensor is missing, or of another shape or type.
    pub(super) fn open(
        settings: &HfSettings,
        config: &HfSettings,
        tensors: &SafeTensors,
    ) -> Result<Self, Error> {
        let algorithm = config.opt_str("quant_algo")?.unwrap_or("unnamed");
        if !ALGORITHMS.contains(&algorithm) {
            let feature = format!("ModelOpt's `{algorithm}` (`quant_algo`)");
            return Err(config.unsupported_value(feature, &ALGORITHMS));
        }
        if algorithm == "NVFP4" && config.opt_usize("group_size")?.is_some_and(|n| n != GROUP_LEN) {
            return Err(config.wrong("group_size", format!("{GROUP_LEN}, as NVFP4 has")));
        }
        let mut fp4 = BTreeMap::new();
        for info in tensors.tensors().iter().filter(|info| info.ty == TensorType::U8) {
            let Some(linear) = info.name.strip_suffix(WEIGHT) else { continue };
            let parts = Parts { settings, tensors, linear };
            fp4.insert(linear.to_owned(), Fp4::open(&parts, &FP4)?);
        }
        let fp8 = Fp8::find(settings, None, tensors)?;
        tracing::info!(
            "{}: ModelOpt's settings are not applied to activations and the key-value cache",
            config.path().display()
        );
        Ok(Self { fp4, fp8 })
    }

    /// Whether a tensor is beside the weight of a linear.
    pub(super) fn is_part(&self, name: &str) -> bool {
        let linear = PARTS.iter().find_map(|part| name.strip_suffix(part));
        linear.is_some_and(|linear| self.fp4.contains_key(linear)) || self.fp8.is_part(name)
    }

    /// The weight `name`, `[n_out, n_in]`, if it is that of a quantized linear.
    pub(super) fn weight(&self, tensors: &SafeTensors, name: &str) -> Option<Tensor> {
        let linear = name.strip_suffix(WEIGHT)?;
        match self.fp4.get(linear) {
            Some(fp4) => fp4.weight(tensors, linear),
            None => self.fp8.weight(tensors, name),
        }
    }

    /// What the products of a weight are to be multiplied by.
    pub(super) fn factor(&self, name: &str) -> f32 {
        let fp4 = name.strip_suffix(WEIGHT).and_then(|linear| self.fp4.get(linear));
        fp4.map_or_else(|| self.fp8.factor(name), Fp4::factor)
    }
}
