//! Linears that a Hugging Face directory has in several tensors: quants, and planes of scales.
//!
//! Each becomes one tensor of a block type when it is read, and not before: what only counts bytes
//! converts nothing. What a method asks for that is not supported is an error when the directory is
//! opened.

mod fp8;
mod gptq;

use super::HfSettings;
use crate::Error;
use fp8::Fp8;
use gptq::Gptq;
use realizar_formats::{SafeTensors, Tensor, TensorType};

/// How the linears of a checkpoint are quantized.
#[derive(Debug)]
pub enum Quantized {
    /// By GPTQ.
    Gptq(Gptq),
    /// As FP8.
    Fp8(Fp8),
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
            Some("gptq") => Some(Self::Gptq(Gptq::open(settings, &config, tensors)?)),
            Some("fp8") => Some(Self::Fp8(Fp8::open(settings, &config, tensors)?)),
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
            Self::Gptq(gptq) => gptq.weights(),
            Self::Fp8(_) => &[],
        }
    }

    /// Whether a stored tensor is part of a weight of another name.
    pub(super) fn is_part(&self, name: &str) -> bool {
        match self {
            Self::Gptq(gptq) => gptq.is_part(name),
            Self::Fp8(fp8) => fp8.is_part(name),
        }
    }

    /// The weight `name`, `[n_out, n_in]`, if it is that of a quantized linear. Its blocks are made
    /// when they are read.
    pub(super) fn weight(&self, tensors: &SafeTensors, name: &str) -> Option<Tensor> {
        match self {
            Self::Gptq(gptq) => gptq.weight(tensors, name),
            Self::Fp8(fp8) => fp8.weight(tensors, name),
        }
    }
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
