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
mod embed;
mod error;
mod gpu;
mod kernel;
mod kv;
mod linear;
mod matmul;
mod matrix;
mod matvec;
mod norm;
mod pack;
mod quantize;
mod recorder;
mod rope;
mod rows;
mod select;
pub mod shader;
#[cfg(test)]
mod testing;
mod timer;

pub use adapter::{Adapter, AdapterKind};
pub use attention::{
    Attention, AttentionScratch, AttentionSpec, SPLIT, TILE_ROWS, Tables, attention_decode,
    attention_prefill,
};
pub use elementwise::{Activation, Elementwise, elementwise};
pub use embed::embed;
pub use error::Error;
pub use gpu::{Buffer, Caps, Gpu, GpuOptions};
pub use kernel::{Grid, Kernel};
pub use kv::{KvLayer, KvSpec, kv_store};
pub use linear::Linear;
pub use matmul::{MatmulOptions, matmul};
pub use matrix::Matrix;
pub use matvec::{matvec, matvec_int8, takes_quantized};
pub use norm::{Norm, NormKind, norm};
pub use pack::{pack_rows, packed_row_bytes};
pub use quantize::{QuantizedRows, quantize};
pub use recorder::Recorder;
pub use rope::{RopeAngles, RopeStyle, rope, rope_table};
pub use rows::{Rows, RowsAt, View};
pub use select::{copy, select_rows};
pub use timer::Timer;
