//! The adapters of this machine, and an opened device: its abilities, its buffers and its faults.

mod adapter;
pub(crate) mod gpu;
pub(crate) mod pipelines;

pub use adapter::{Adapter, AdapterKind};
pub use gpu::{Buffer, Caps, Gpu, GpuOptions};
