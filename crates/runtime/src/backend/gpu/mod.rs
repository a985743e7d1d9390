//! What backends of GPUs share: how a plan's weights are put together and brought to a device.

pub(crate) mod weights;
