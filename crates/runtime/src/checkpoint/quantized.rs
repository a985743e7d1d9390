//! Linears that a Hugging Face directory has in several tensors: quants, and planes of scales.
//!
//! Each becomes one tensor of a block type when it is read, and not before: what only counts bytes
//! converts nothing. What a method asks for that is not supported is an error when the directory is
//! opened.

mod awq;
mod fp8;
mod gptq;
mod groups;

use super::HfSettings;
use crate::Error;
use awq::Awq;
use fp8::Fp8;
use gptq::Gptq;
use realizar_formats::{SafeTensors, Tensor, TensorType};

/// How the linears of a checkpoint are quantized.
#[derive(Debug)]
pub enum Quantized {
    /// By AWQ.
    Awq(Awq),
    /// By GPTQ.
    Gptq(Gptq),
    /// As FP8.
    Fp8(Fp8),
    /// The experts as MXFP4, in tensors of blocks and of scales, which the loader of these experts puts
    /// together. All else is as it is.
    Mxfp4,
}

impl Quantized {
    /// Reads `quantization_config`, if there is one of a known method.
    ///
    /// # Errors
    /// If it asks for what is not supported, or a tensor is missing or is not as it should be.
    pub(super) fn open(
        settings: &HfSettings,
        tensors: &SafeTensors,
    ) -> Result<Option<Self>, Error> {
        let Some(config) = settings.opt_object("quantization_config")? else { return Ok(None) };
        Ok(match config.opt_str("quant_method")? {
            Some("awq") => Some(Self::Awq(Awq::open(settings, &config, tensors)?)),
            Some("gptq") => Some(Self::Gptq(Gptq::open(settings, &config, tensors)?)),
            Some("fp8") => Some(Self::Fp8(Fp8::open(settings, &config, tensors)?)),
            Some("mxfp4") => Some(Self::Mxfp4),
            Some("compressed-tensors") => {
                fp8::check_compressed(&config)?;
                Some(Self::Fp8(Fp8::open(settings, &config, tensors)?))
            }
            _ => None,
        })
    }

    /// The names of the weights that are made and are not those of a stored tensor.
    pub(super) fn weights(&self) -> &[String] {
        match self {
            Self::Awq(awq) => &awq.linears().weights,
            Self::Gptq(gptq) => &gptq.linears().weights,
            Self::Fp8(_) | Self::Mxfp4 => &[],
        }
    }

    /// Whether a stored tensor is part of a weight of another name.
    pub(super) fn is_part(&self, name: &str) -> bool {
        match self {
            Self::Awq(awq) => awq.linears().is_part(name),
            Self::Gptq(gptq) => gptq.linears().is_part(name),
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
            Self::Fp8(fp8) => fp8.weight(tensors, name),
            Self::Mxfp4 => None,
        }
    }

    /// The input that each column of a weight is for, where that is not its own.
    pub(super) fn order(&self, tensors: &SafeTensors, weight: &str) -> Option<Vec<u32>> {
        match self {
            Self::Gptq(gptq) => gptq.order(tensors, weight),
            Self::Awq(_) | Self::Fp8(_) | Self::Mxfp4 => None,
        }
    }
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
