//! GPU kernels for transformer inference in WGSL, over wgpu: Vulkan, Metal and
//! DX12.
//!
//! [`Adapter::all`] lists what the machine has and [`Gpu::open`] opens one. A
//! function per operation binds a kernel to its buffers once; a [`Recorder`]
//! then runs bound kernels for any number of rows, as one command buffer. The
//! crate knows no model and no file format.
//!
//! ```
//! use realizar_kernels_wgpu::{
//!     Adapter, Gpu, GpuOptions, Linear, Matrix, Rows, RowsAt, View, matvec,
//! };
//! use realizar_quant::BlockType;
//!
//! if Adapter::all().is_empty() {
//!     println!("no GPU adapter on this machine");
//!     return Ok(());
//! }
//! let gpu = Gpu::open(0, GpuOptions::default())?;
//!
//! // A 2 x 32 matrix of Q8_0 blocks: an f16 scale of 1.0, then 32 quants.
//! let row: Vec<u8> = [0x00, 0x3c].into_iter().chain(0..32).collect();
//! let matrix = Matrix::upload(&gpu, "w", BlockType::Q8_0, 2, 32, &row.repeat(2))?;
//!
//! // One row of 32 values, and room for the two results behind it.
//! let values = gpu.buffer("values", 34 * 4)?;
//! gpu.write(&values, 0, bytemuck::cast_slice(&[1.0f32; 32]))?;
//! // The step: its first row, and how many there are.
//! let batch = gpu.buffer("batch", 8)?;
//! gpu.write(&batch, 0, bytemuck::cast_slice(&[0u32, 1]))?;
//! let rows = Rows { values: &values, batch: &batch, at: RowsAt(0) };
//! let linear = Linear {
//!     matrix: &matrix,
//!     vectors: &gpu.buffer("biases", 4)?,
//!     bias: None,
//!     x: View::dense(0, 32),
//!     residual: None,
//!     out: View::dense(32, 2),
//! };
//!
//! let readback = gpu.readback_buffer("results", 8)?;
//! let mut recorder = gpu.record();
//! for kernel in matvec(&gpu, rows, &linear)? {
//!     recorder.run(&kernel, 1);
//! }
//! recorder.copy((&values, 32 * 4), (&readback, 0), 8);
//! recorder.submit()?;
//! let mut out = [0.0f32; 2];
//! gpu.read(&readback, &mut out)?;
//! assert_eq!(out, [496.0, 496.0]);
//! # Ok::<(), realizar_kernels_wgpu::Error>(())
//! ```

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
    Attention, AttentionScratch, AttentionSpec, SPLIT, Splits, TILE_ROWS, Tables, attention_decode,
    attention_next_wave, attention_prefill,
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
