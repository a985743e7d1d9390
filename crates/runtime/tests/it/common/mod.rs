//! What several tests need.

#[cfg(any(feature = "wgpu", feature = "cuda-interpreter"))]
pub(crate) mod golden;
pub(crate) mod gpus;
pub(crate) mod other_load;
pub(crate) mod quantized;
pub(crate) mod random;
pub(crate) mod requests;
pub(crate) mod segments;
pub(crate) mod tiny;
pub(crate) mod tiny_models;
