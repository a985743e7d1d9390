//! GPU backends, seen through the models that they run.

#[cfg(feature = "cuda-interpreter")]
mod cuda;
#[cfg(feature = "wgpu")]
mod wgpu;
