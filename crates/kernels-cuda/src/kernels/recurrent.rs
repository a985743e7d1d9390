//! Kernels with a recurrent state: short convolutions and the gated delta rule.

use crate::Error;
use crate::device::Device;
use crate::image::Image;

const IMAGE: &[u8] = include_bytes!("../../image/recurrent.ptx.br");
/// Maximum key lengths of the delta rule's kernels, in pieces of 32 elements.
pub(crate) const KEY_PIECES: [usize; 4] = [1, 2, 4, 8];

/// The functions of the image.
#[derive(Debug)]
pub(crate) struct RecurrentKernels<D: Device> {
    /// With one channel per thread, and with four.
    pub(crate) short_conv: [D::Function; 2],
    /// With one column per thread and with two, each by [`KEY_PIECES`].
    pub(crate) delta_net: [[D::Function; KEY_PIECES.len()]; 2],
}

impl<D: Device> RecurrentKernels<D> {
    pub(crate) fn load(device: &D) -> Result<Self, Error> {
        let image = Image::load(device, "recurrent", IMAGE)?;
        let delta_net =
            |cols| image.functions(KEY_PIECES, |pieces| format!("delta_net_{pieces}_{cols}"));
        Ok(Self {
            short_conv: image.functions([1, 4], |n| format!("short_conv_{n}"))?,
            delta_net: [delta_net(1)?, delta_net(2)?],
        })
    }
}
