//! Kernels of elementwise operations. Some exist once per activation.

use crate::Error;
use crate::device::{Argument, Device};
use crate::image::Image;
use realizar_types::Activation;

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
            act: image.functions(Activation::ALL, |act| format!("act_{}", kernel_name(act)))?,
            gated: image.functions(Activation::ALL, |act| format!("gated_{}", kernel_name(act)))?,
            add: image.function("add")?,
            mul: image.function("mul")?,
            scale: image.function("scale")?,
            softcap: image.function("softcap")?,
            clamp: image.function("clamp_to")?,
        })
    }
}

/// The activation as an argument of kernels that take it at run time: its place in `cuda/activations.cuh`.
pub(crate) fn activation_argument(activation: Activation) -> Argument {
    Argument::I32(activation as i32)
}

/// The activation's part of a kernel's name.
fn kernel_name(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu => "silu",
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_tanh",
        Activation::GeluQuick => "gelu_quick",
        Activation::Relu => "relu",
        Activation::ReluSquared => "relu_squared",
        Activation::Tanh => "tanh",
        Activation::Sigmoid => "sigmoid",
        Activation::Mish => "mish",
    }
}
