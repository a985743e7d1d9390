//! Kernels of rotary position embeddings.

use crate::Error;
use crate::device::Device;
use crate::image::Image;

const IMAGE: &[u8] = include_bytes!("../../image/rope.ptx.br");

/// The functions of the image.
#[derive(Debug)]
pub(crate) struct RopeKernels<D: Device> {
    pub(crate) table: D::Function,
    pub(crate) rope: D::Function,
}

impl<D: Device> RopeKernels<D> {
    pub(crate) fn load(device: &D) -> Result<Self, Error> {
        let image = Image::load(device, "rope", IMAGE)?;
        Ok(Self { table: image.function("rope_table")?, rope: image.function("rope")? })
    }
}
