//! Linears that a Hugging Face directory has in several tensors: quants, and planes of scales.
//!
//! Each becomes one tensor of a block type when it is read, and not before: what only counts bytes
//! converts nothing. What a method asks for that is not supported is an error when the directory is
//! opened.

mod awq;
mod bitsandbytes;
mod compressed;
mod fp4;
mod fp8;
mod gptq;
mod groups;
mod ints;
mod modelopt;
mod torchao;

use super::HfSettings;
use crate::Error;
use awq::Awq;
use bitsandbytes::BitsAndBytes;
use compressed::Compressed;
use fp8::Fp8;
use gptq::Gptq;
use modelopt::ModelOpt;
use realizar_formats::{Bytes, SafeTensors, Tensor, TensorType};
use realizar_quant::BlockType;
use realizar_quant::half_bytes::{f16_to_f32, f32_to_f16};
use torchao::TorchAo;

/// How the linears of a checkpoint are quantized.
#[derive(Debug)]
pub enum Quantized {
    /// By AWQ.
    Awq(Awq),
    /// By bitsandbytes.
    BitsAndBytes(BitsAndBytes),
    /// As compressed-tensors.
    Compressed(Compressed),
    /// By GPTQ.
    Gptq(Gptq),
    /// As FP8.
    Fp8(Fp8),
    /// The experts as MXFP4, in tensors of blocks and of scales, which the loader of these experts puts
    /// together. All else is as it is.
    Mxfp4,
    /// By ModelOpt.
    ModelOpt(ModelOpt),
    /// By torchao.
    TorchAo(TorchAo),
}

impl Quantized {
    /// The methods that [`Self::open`] knows.
    pub(crate) const METHODS: &[&str] = &[
        "awq",
        "bitsandbytes",
        "compressed-tensors",
        "fp8",
        "gptq",
        "modelopt",
        "mxfp4",
        "torchao",
    ];

    /// Reads `quantization_config`, if there is one of a known method.
    ///
    /// # Errors
    /// If it asks for what is not supported, or a tensor is missing or is not as it should be.
    pub(super) fn open(
        settings: &HfSettings,
        tensors: &SafeTensors,
    ) -> Result<Option<Self>, Error> {
        let Some((config, quantized)) = Self::read(settings, tensors)? else { return Ok(None) };
        if !quantized.has_weights(tensors) {
            return Err(config.wrong("quant_method", "nothing, as no tensor is quantized by it"));
        }
        Ok(Some(quantized))
    }

    /// The settings of the method, and what they ask for.
    fn read(
        settings: &HfSettings,
        tensors: &SafeTensors,
    ) -> Result<Option<(HfSettings, Self)>, Error> {
        // Early files of compressed-tensors have it under another name.
        let config = match settings.opt_object("quantization_config")? {
            None => settings.opt_object("compression_config")?,
            config => config,
        };
        let Some(config) = config else {
            let Some(config) = ModelOpt::beside(settings)? else { return Ok(None) };
            let quantized = Self::ModelOpt(ModelOpt::open(settings, &config, tensors)?);
            return Ok(Some((config, quantized)));
        };
        let quantized = match config.opt_str("quant_method")? {
            Some("awq") => Some(Self::Awq(Awq::open(settings, &config, tensors)?)),
            Some("gptq") => Some(Self::Gptq(Gptq::open(settings, &config, tensors)?)),
            Some("fp8") => Some(Self::Fp8(Fp8::open(settings, &config, tensors)?)),
            Some("mxfp4") => {
                config.opt_strs("modules_to_not_convert")?;
                Some(Self::Mxfp4)
            }
            Some("bitsandbytes") => {
                Some(Self::BitsAndBytes(BitsAndBytes::open(settings, &config, tensors)?))
            }
            Some("modelopt") => Some(Self::ModelOpt(ModelOpt::open(settings, &config, tensors)?)),
            Some("torchao") => Some(Self::TorchAo(TorchAo::open(settings, &config, tensors)?)),
            Some("compressed-tensors") => {
                Some(Self::Compressed(Compressed::open(settings, &config, tensors)?))
            }
            _ => None,
        };
        Ok(quantized.map(|quantized| (config, quantized)))
    }

    /// Whether any tensor is part of a quantized weight, or says how the key-value cache is.
    fn has_weights(&self, tensors: &SafeTensors) -> bool {
        let mut names = tensors.tensors().iter().map(|info| info.name.as_str());
        let is_of_cache = |name: &str| OF_CACHE.iter().any(|part| name.ends_with(part));
        match self {
            Self::Mxfp4 => names.any(|name| name.ends_with("_blocks")),
            _ if !self.weights().is_empty() => true,
            _ => names.any(|name| is_of_cache(name) || self.weight(tensors, name).is_some()),
        }
    }

    /// The names of the weights that are made and are not those of a stored tensor.
    pub(super) fn weights(&self) -> &[String] {
        match self {
            Self::Awq(awq) => &awq.linears().weights,
            Self::Gptq(gptq) => &gptq.linears().weights,
            Self::Compressed(it) => it.weights(),
            Self::TorchAo(it) => it.weights(),
            Self::BitsAndBytes(_) | Self::Fp8(_) | Self::ModelOpt(_) | Self::Mxfp4 => &[],
        }
    }

    /// Whether a stored tensor is part of a weight of another name.
    pub(super) fn is_part(&self, name: &str) -> bool {
        let has_cache_scales =
            matches!(self, Self::Compressed(_) | Self::Fp8(_) | Self::ModelOpt(_));
        if has_cache_scales && OF_CACHE.iter().any(|part| name.ends_with(part)) {
            return true;
        }
        match self {
            Self::Awq(awq) => awq.linears().is_part(name),
            Self::Gptq(gptq) => gptq.linears().is_part(name),
            Self::Compressed(it) => it.is_part(name),
            Self::BitsAndBytes(it) => it.is_part(name),
            Self::ModelOpt(it) => it.is_part(name),
            Self::TorchAo(it) => it.is_part(name),
            Self::Fp8(fp8) => fp8.is_part(name),
            Self::Mxfp4 => false,
        }
    }

    /// The weight `name`, `[n_out, n_in]`, if it is that of a quantized linear. Its blocks are made
    /// when they are read.
    pub(super) fn weight(&self, tensors: &SafeTensors, name: &str) -> Option<Tensor> {
        match self {
            Self::Awq(awq) => awq.weight(tensors, name),
            Self::Gptq(gptq) => gptq.weight(tensors, name),
            Self::Compressed(it) => it.weight(tensors, name),
            Self::BitsAndBytes(it) => it.weight(tensors, name),
            Self::ModelOpt(it) => it.weight(tensors, name),
            Self::TorchAo(it) => it.weight(tensors, name),
            Self::Fp8(fp8) => fp8.weight(tensors, name),
            Self::Mxfp4 => None,
        }
    }

    /// The input that each column of a weight is for, where that is not its own.
    pub(super) fn order(&self, tensors: &SafeTensors, weight: &str) -> Option<Vec<u32>> {
        match self {
            Self::Gptq(gptq) => gptq.order(tensors, weight),
            Self::Compressed(it) => it.order(tensors, weight),
            Self::Awq(_)
            | Self::BitsAndBytes(_)
            | Self::Fp8(_)
            | Self::ModelOpt(_)
            | Self::Mxfp4
            | Self::TorchAo(_) => None,
        }
    }

    /// What the products of a weight are to be multiplied by.
    pub(super) fn factor(&self, weight: &str) -> f32 {
        match self {
            Self::Compressed(it) => it.factor(weight),
            Self::BitsAndBytes(it) => it.factor(weight),
            Self::Fp8(it) => it.factor(weight),
            Self::ModelOpt(it) => it.factor(weight),
            Self::TorchAo(it) => it.factor(weight),
            Self::Awq(_) | Self::Gptq(_) | Self::Mxfp4 => 1.0,
        }
    }
}

/// What files have for key-value caches in FP8. Ours hold keys and values themselves, or their blocks have scales of
/// their own.
const OF_CACHE: [&str; 6] =
    [".k_scale", ".k_zero_point", ".q_scale", ".q_zero_point", ".v_scale", ".v_zero_point"];

/// The numbers of a tensor of floats; none of another type.
fn floats(tensor: &Tensor) -> Option<Vec<f32>> {
    let ty = tensor.ty.block_type()?;
    if !matches!(ty, BlockType::F32 | BlockType::F16 | BlockType::BF16) {
        return None;
    }
    let mut values = vec![0.0; tensor.data.len() / ty.block_bytes()];
    realizar_quant::dequantize(ty, &tensor.data, &mut values).ok()?;
    Some(values)
}

/// The power of two times which F16 holds all these numbers exactly, 0 if it can be.
fn exponent_for_f16(values: &[f32]) -> Option<i32> {
    let is_exact = |exponent: i32| {
        let factor = (exponent as f32).exp2();
        values.iter().all(|&x| x.is_finite() && f16_to_f32(f32_to_f16(x * factor)) == x * factor)
    };
    let peak = values.iter().fold(0.0_f32, |peak, x| peak.max(x.abs()));
    // The largest number that F16 can hold lies below 2 to the 16th.
    let highest = if peak > 0.0 && peak.is_finite() { 15 - peak.log2().floor() as i32 } else { 0 };
    [0, highest].into_iter().find(|&exponent| exponent.abs() <= 100 && is_exact(exponent))
}

/// A matrix whose products are to be multiplied by a factor, as F32 with it.
pub(super) fn with_factor(tensor: &Tensor, factor: f32) -> Option<Tensor> {
    let (ty, n) = (tensor.ty.block_type()?, tensor.n_elements());
    let source = tensor.data.clone();
    let data = Bytes::made(vec![source.clone()], n * size_of::<f32>(), move || {
        let mut values = vec![0.0; n];
        realizar_quant::dequantize(ty, &source.for_once(), &mut values).expect("whole blocks");
        values.iter().flat_map(|x| (x * factor).to_le_bytes()).collect()
    });
    Some(Tensor { ty: BlockType::F32.into(), data, ..tensor.clone() })
}

/// What the tensors of a linear with groups end in.
const QUANTS: &str = ".qweight";
const ZEROS: &str = ".qzeros";
const SCALES: &str = ".scales";
const ORDER: &str = ".g_idx";

/// The linears of a checkpoint that are quants, scales and zero points.
#[derive(Debug, Default)]
struct Linears {
    /// Sorted.
    names: Vec<String>,
    /// Of each, the name of the weight that is made of it.
    weights: Vec<String>,
}

impl Linears {
    fn find(tensors: &SafeTensors) -> Self {
        let names = tensors.tensors().iter().filter_map(|info| info.name.strip_suffix(QUANTS));
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.sort_unstable();
        let weights = names.iter().map(|name| format!("{name}.weight")).collect();
        Self { names, weights }
    }

    fn has(&self, linear: &str) -> bool {
        self.names.binary_search_by(|name| name.as_str().cmp(linear)).is_ok()
    }

    /// Whether a tensor is part of one of them.
    fn is_part(&self, name: &str) -> bool {
        let linear = [QUANTS, ZEROS, SCALES, ORDER].iter().find_map(|it| name.strip_suffix(it));
        linear.is_some_and(|linear| self.has(linear))
    }

    /// The linear of a weight.
    fn linear_of<'a>(&self, weight: &'a str) -> Option<&'a str> {
        weight.strip_suffix(".weight").filter(|linear| self.has(linear))
    }
}

/// The inputs that share a scale; `None` if all do.
fn group_len(config: &HfSettings, key: &str, method: &str) -> Result<Option<usize>, Error> {
    match config.opt_f32(key)? {
        None | Some(-1.0) => Ok(None),
        Some(n) if n > 0.0 && n % groups::BLOCK_LEN as f32 == 0.0 => Ok(Some(n as usize)),
        Some(n) => Err(config.unsupported(format!("{method} with groups of {n}"))),
    }
}

/// Word `i` of a tensor of words.
fn word(bytes: &[u8], i: usize) -> u32 {
    u32::from_le_bytes(bytes.as_chunks().0[i])
}

/// The words of a tensor of words.
fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word))
}

/// The tensors of a linear.
struct Parts<'a> {
    settings: &'a HfSettings,
    tensors: &'a SafeTensors,
    linear: &'a str,
}

impl Parts<'_> {
    /// The tensor that ends in `part`.
    fn find(&self, part: &str) -> Result<Tensor, Error> {
        let tensor = format!("{}{part}", self.linear);
        self.tensors.tensor(&tensor).ok_or_else(|| Error::MissingTensor {
            path: self.settings.path().to_owned(),
            tensor,
            weight: format!("{}.weight", self.linear),
        })
    }

    /// A tensor, if it is of this type and shape.
    fn check(&self, tensor: Tensor, ty: TensorType, expected: &[usize]) -> Result<Tensor, Error> {
        let Tensor { name, shape: found, ty: found_ty, .. } = &tensor;
        let path = self.settings.path().to_owned();
        if found != expected {
            let (expected, found) = (expected.to_vec(), found.clone());
            return Err(Error::Shape { path, tensor: name.clone(), expected, found });
        }
        if *found_ty != ty {
            let (ty, reason) = (found_ty.to_string(), format!("should be {ty}"));
            return Err(Error::TensorType { path, tensor: name.clone(), ty, reason });
        }
        Ok(tensor)
    }

    /// The error for what is not supported of it.
    fn refuse(&self, what: &str) -> Error {
        self.settings.unsupported(format!("`{}`: {what}", self.linear))
    }
}
