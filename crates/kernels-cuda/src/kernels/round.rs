//! Kernels that round activations to half precision.

use crate::Error;
use crate::device::Device;
use crate::image::Image;

const IMAGE: &[u8] = include_bytes!("../../image/round.ptx.br");

/// The functions of the image.
#[derive(Debug)]
pub(crate) struct RoundKernels<D: Device> {
    pub(crate) f16: D::Function,
    pub(crate) bf16: D::Function,
    pub(crate) split: D::Function,
}

impl<D: Device> RoundKernels<D> {
    pub(crate) fn load(device: &D) -> Result<Self, Error> {
        let image = Image::load(device, "round", IMAGE)?;
        Ok(Self {
            f16: image.function("round_rows_f16")?,
            bf16: image.function("round_rows_bf16")?,
            split: image.function("split_rows")?,
        })
    }
}
