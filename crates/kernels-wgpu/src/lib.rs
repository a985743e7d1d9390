//! GPU kernels for transformer inference in WGSL, over wgpu: Vulkan, Metal and
//! DX12.
//!
//! [`Adapter::all`] lists what the machine has and [`Gpu::open`] opens one. A
//! function per operation binds a kernel to its buffers once; a [`Recorder`]
//! then runs bound kernels for any number of rows, as one command buffer. The
//! crate knows no model and no file format.

mod adapter;
mod attention;
mod elementwise;
mod error;
mod gpu;
mod kernel;
mod kv;
mod recorder;
mod rows;
pub mod shader;
#[cfg(test)]
mod testing;

pub use adapter::{Adapter, AdapterKind};
pub use attention::{
    Attention, AttentionScratch, AttentionSpec, SPLIT, TILE_ROWS, Tables, attention_decode,
    attention_prefill,
};
pub use elementwise::{Activation, Elementwise, elementwise};
pub use error::Error;
pub use gpu::{Buffer, Caps, Gpu, GpuOptions};
pub use kernel::{Grid, Kernel};
pub use kv::{KvLayer, KvSpec, kv_store};
pub use recorder::Recorder;
pub use rows::{Rows, RowsAt, View};
