//! GPU kernels for transformer inference in WGSL, over wgpu: Vulkan, Metal and DX12.
//!
//! [`Adapter::all`] lists the machine's adapters and [`Gpu::open`] opens one. Each operation has a
//! function that binds its kernel to buffers once; a [`Recorder`] then runs bound kernels for any number
//! of rows, as one command buffer. The crate knows no model and no file format.
//!
//! The folders are floors: each uses only those before it.
//!
//! | floor | what it holds |
//! |---|---|
//! | `device` | the list of adapters; an opened device, its buffers, pipelines and faults |
//! | `dispatch` | shaders assembled from parts, kernels bound to buffers, the location of rows, command buffers, time taken on the device |
//! | `storage` | quantized matrices, keys and values in pages, recurrent states in slots |
//! | `ops` | the operations, a file each |
//!
//! In `shaders/`, `decode/` widens a type's blocks, and `levels/` and `dot4/` multiply them with 8-bit activations.
//!
//! ```
//! use realizar_kernels_wgpu::{
//!     Adapter, BlockType, Gpu, GpuOptions, Linear, Matrix, Rows, RowsAt, View, matvec,
//! };
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

pub use realizar_quant::BlockType;
pub use realizar_types::{
    Activation, Groups, NormKind, RopeStyle, Scoring, ShareScale, SharesOf, Shortlist,
    ShortlistLimits, ShortlistRow,
};

mod error;
pub use error::Error;

mod device;
pub use device::{Adapter, AdapterKind, Buffer, Caps, Gpu, GpuOptions};

mod dispatch;
pub use dispatch::{Grid, Kernel, Recorder, Rows, RowsAt, Timer, View, shader};

mod storage;
pub use storage::{
    KvLayer, KvSpec, Matrix, StateLayer, StateLists, StateSpec, pack_rows, packed_row_bytes,
};

mod ops;
pub use ops::{
    Attention, AttentionScratch, AttentionSpec, DeltaNet, DeltaNetSpec, Elementwise, ExpertLinear,
    ExpertPairs, Linear, MatmulOptions, Norm, QuantizedRows, RopeAngles, Routing, SPLIT, ShortConv,
    ShortlistScratch, Shortlists, Splits, TILE_ROWS, Tables, attention_decode, attention_next_wave,
    attention_prefill, combine, copy, delta_net, elementwise, embed, expert_bias, expert_matmul,
    expert_matvec, expert_matvec_int8, kv_store, matmul, matvec, matvec_int8, norm, quantize,
    reorder, rope, rope_table, route, select_rows, shaders, short_conv, sort_by_expert,
    takes_quantized,
};

#[cfg(test)]
mod testing;
