//! Kernels that quantize activations.

use crate::Error;
use crate::device::Device;
use crate::image::Image;

const IMAGE: &[u8] = include_bytes!("../../image/quantize.ptx.br");

/// The functions of the image.
#[derive(Debug)]
pub(crate) struct QuantizeKernels<D: Device> {
    pub(crate) plain: D::Function,
    pub(crate) activated: D::Function,
    pub(crate) rms: D::Function,
    pub(crate) layer: D::Function,
}

impl<D: Device> QuantizeKernels<D> {
    pub(crate) fn load(device: &D) -> Result<Self, Error> {
        let image = Image::load(device, "quantize", IMAGE)?;
        Ok(Self {
            plain: image.function("quantize")?,
            activated: image.function("quantize_activated")?,
            rms: image.function("quantize_rms_norm")?,
            layer: image.function("quantize_layer_norm")?,
        })
    }
}
