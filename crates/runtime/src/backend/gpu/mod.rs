//! What backends of GPUs share: how a plan's weights are put together and brought to a device.

pub(crate) mod weights;

#[cfg(test)]
#[path = "../../../tests/it/common/quantized.rs"]
pub(crate) mod quantized;
#[cfg(test)]
#[path = "../../../tests/it/common/tiny.rs"]
pub(crate) mod tiny;
