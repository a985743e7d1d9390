//! Kernels of elementwise operations. Some exist once per activation.

use crate::Error;
use crate::device::{Argument, Device};
use crate::image::Image;

const IMAGE: &[u8] = include_bytes!("../../image/elementwise.ptx.br");

/// The functions of the image.
#[derive(Debug)]
pub(crate) struct ElementwiseKernels<D: Device> {
    pub(crate) act: [D::Function; Activation::ALL.len()],
    pub(crate) gated: [D::Function; Activation::ALL.len()],
    pub(crate) add: D::Function,
    pub(crate) mul: D::Function,
    pub(crate) scale: D::Function,
    pub(crate) softcap: D::Function,
    pub(crate) clamp: D::Function,
}

impl<D: Device> ElementwiseKernels<D> {
    pub(crate) fn load(device: &D) -> Result<Self, Error> {
        let image = Image::load(device, "elementwise", IMAGE)?;
        Ok(Self {
            act: image.functions(Activation::ALL, |act| format!("act_{}", act.name()))?,
            gated: image.functions(Activation::ALL, |act| format!("gated_{}", act.name()))?,
            add: image.function("add")?,
            mul: image.function("mul")?,
            scale: image.function("scale")?,
            softcap: image.function("softcap")?,
            clamp: image.function("clamp_to")?,
        })
    }
}

/// An activation function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `x * (1 + erf(x / sqrt 2)) / 2`.
    Gelu,
    /// GELU by its tanh approximation.
    GeluTanh,
    /// `x * sigmoid(1.702 x)`.
    GeluQuick,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)` squared.
    ReluSquared,
    /// The hyperbolic tangent.
    Tanh,
    /// The logistic function.
    Sigmoid,
    /// `x * tanh(ln(1 + e^x))`.
    Mish,
}

impl Activation {
    /// All activations, in the order of `cuda/activations.cuh`.
    pub(crate) const ALL: [Self; 9] = [
        Self::Silu,
        Self::Gelu,
        Self::GeluTanh,
        Self::GeluQuick,
        Self::Relu,
        Self::ReluSquared,
        Self::Tanh,
        Self::Sigmoid,
        Self::Mish,
    ];

    /// The activation as an argument of kernels that take it at run time.
    pub(crate) fn argument(self) -> Argument {
        let idx = Self::ALL.iter().position(|&of| of == self);
        Argument::I32(idx.expect("it is one of all") as i32)
    }

    /// The name in kernel names.
    fn name(self) -> &'static str {
        match self {
            Self::Silu => "silu",
            Self::Gelu => "gelu",
            Self::GeluTanh => "gelu_tanh",
            Self::GeluQuick => "gelu_quick",
            Self::Relu => "relu",
            Self::ReluSquared => "relu_squared",
            Self::Tanh => "tanh",
            Self::Sigmoid => "sigmoid",
            Self::Mish => "mish",
        }
    }
}
