//! Kernels that select tokens from rows of logits.

use crate::Error;
use crate::device::Device;
use crate::image::Image;

const IMAGE: &[u8] = include_bytes!("../../image/shortlist.ptx.br");

/// The functions of the image.
#[derive(Debug)]
pub(crate) struct ShortlistKernels<D: Device> {
    pub(crate) greedy: D::Function,
    pub(crate) select: D::Function,
    pub(crate) weigh: D::Function,
    pub(crate) feed: D::Function,
}

impl<D: Device> ShortlistKernels<D> {
    pub(crate) fn load(device: &D) -> Result<Self, Error> {
        let image = Image::load(device, "shortlist", IMAGE)?;
        Ok(Self {
            greedy: image.function("shortlist_greedy")?,
            select: image.function("shortlist_select")?,
            weigh: image.function("shortlist_weigh")?,
            feed: image.function("shortlist_feed")?,
        })
    }
}
