//! Kernels that route rows to experts and combine the experts' results.

use crate::Error;
use crate::device::Device;
use crate::image::Image;

const IMAGE: &[u8] = include_bytes!("../../image/route.ptx.br");
/// Experts per lane, one kernel each.
pub(crate) const PER_LANE: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// The functions of the image.
#[derive(Debug)]
pub(crate) struct RouteKernels<D: Device> {
    pub(crate) route: [D::Function; PER_LANE.len()],
    /// With one element per thread, and with four.
    pub(crate) combine: [D::Function; 2],
    pub(crate) bias: D::Function,
    pub(crate) reorder: D::Function,
}

impl<D: Device> RouteKernels<D> {
    pub(crate) fn load(device: &D) -> Result<Self, Error> {
        let image = Image::load(device, "route", IMAGE)?;
        Ok(Self {
            route: image.functions(PER_LANE, |n| format!("route_{n}"))?,
            combine: image.functions([1, 4], |n| format!("combine_{n}"))?,
            bias: image.function("expert_bias")?,
            reorder: image.function("reorder")?,
        })
    }
}
