//! CPU kernels for transformer inference on plain slices.

#[cfg(target_arch = "x86_64")]
mod lanes;
pub mod math;
