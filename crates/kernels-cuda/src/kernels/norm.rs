//! The kernels of RMS and layer norms.

use crate::Error;
use crate::device::Device;
use crate::image::Image;

const IMAGE: &[u8] = include_bytes!("../../image/norm.ptx.br");

/// The functions of the image. Each norm has a kernel with a block per run and one with a warp per run.
#[derive(Debug)]
pub(crate) struct NormKernels<D: Device> {
    pub(crate) rms: [D::Function; 2],
    pub(crate) layer: [D::Function; 2],
}

impl<D: Device> NormKernels<D> {
    pub(crate) fn load(device: &D) -> Result<Self, Error> {
        let image = Image::load(device, "norm", IMAGE)?;
        let of = |name: &str| image.functions(["", "_heads"], |width| format!("{name}{width}"));
        Ok(Self { rms: of("rms_norm")?, layer: of("layer_norm")? })
    }
}
