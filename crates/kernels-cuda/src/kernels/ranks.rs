//! Kernels that sum or concatenate the rows of all ranks.

use crate::Error;
use crate::device::Device;
use crate::image::Image;

const IMAGE: &[u8] = include_bytes!("../../image/ranks.ptx.br");

/// The functions of the image.
#[derive(Debug)]
pub(crate) struct RankKernels<D: Device> {
    pub(crate) sum: D::Function,
    pub(crate) join: D::Function,
}

impl<D: Device> RankKernels<D> {
    pub(crate) fn load(device: &D) -> Result<Self, Error> {
        let image = Image::load(device, "ranks", IMAGE)?;
        Ok(Self { sum: image.function("sum_ranks")?, join: image.function("join_ranks")? })
    }
}
