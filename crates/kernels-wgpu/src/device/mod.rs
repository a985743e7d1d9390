//! The adapters of this machine, and opened devices with their capabilities, buffers and errors.

mod adapter;
pub(crate) mod gpu;
pub(crate) mod pipelines;

pub use adapter::{Adapter, AdapterKind};
pub use gpu::{Buffer, Caps, Gpu, GpuOptions};
