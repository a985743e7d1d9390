//! Kernels of embedding lookups and row selection.

use crate::Error;
use crate::device::Device;
use crate::image::Image;
use crate::matrix::BLOCK_TYPES;

const IMAGE: &[u8] = include_bytes!("../../image/embed.ptx.br");

/// The functions of the image.
#[derive(Debug)]
pub(crate) struct EmbedKernels<D: Device> {
    pub(crate) by_type: [D::Function; BLOCK_TYPES.len()],
    pub(crate) select_rows: D::Function,
}

impl<D: Device> EmbedKernels<D> {
    pub(crate) fn load(device: &D) -> Result<Self, Error> {
        let image = Image::load(device, "embed", IMAGE)?;
        let name = |ty: realizar_quant::BlockType| format!("embed_{}", ty.name().to_lowercase());
        Ok(Self {
            by_type: image.functions(BLOCK_TYPES, name)?,
            select_rows: image.function("select_rows")?,
        })
    }
}
