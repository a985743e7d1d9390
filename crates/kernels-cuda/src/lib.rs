//! CUDA kernels for transformer inference. The driver is opened at run time: building the crate requires no CUDA
//! installation, and on a machine without a driver opening a GPU is an error.
//!
//! A [`Driver`] is an opened GPU, on which [`Kernels`] are loaded once. Each operation is a function that checks its
//! shapes and queues one launch in a stream. Streams can be captured into graphs and replayed. All calls go through the
//! trait [`Device`]. The crate knows neither models nor file formats.
//!
//! The terms of each sum have a fixed order, which does not depend on the other rows of a step, and compilers do not
//! contract operations. The bits of a result therefore depend on its own inputs alone.
//!
//! The modules are floors: each uses only those before it. `cuda/` has the kernels in CUDA C++, `image/` what `cargo
//! xtask kernels cuda` compiles of them.
//!
//! | floor | what it holds |
//! |---|---|
//! | `device` | the trait, NVIDIA's driver and NCCL opened at run time, buffers, small copies through pinned memory, launches that start early |
//! | `image`, `matrix`, `pages`, `states` | kernels on their way to a device; weights in planes that are read 16 bytes at a time; keys and values; recurrent states |
//! | `kernels` | the functions of each image, those of a type loaded when it is first used |
//! | `ops` | the operations, a file each |
//! | `bench` | `bench_cuda`, with the feature `bench` |
//!
//! ```
//! use std::sync::Arc;
//!
//! use realizar_kernels_cuda::{BlockType, Buffer, Device, Driver, Error, Kernels, Linear, Matrix, Rows, matvec};
//!
//! let device = match Driver::open(0) {
//!     Ok(device) => Arc::new(device),
//!     Err(error) => {
//!         println!("{error}");
//!         return Ok(());
//!     }
//! };
//! let (kernels, stream) = (Kernels::load(&device)?, device.stream()?);
//!
//! // A 2 x 32 matrix of Q8_0 blocks: an f16 scale of 1.0, then 32 quants.
//! let row: Vec<u8> = [0x00, 0x3c].into_iter().chain(0..32).collect();
//! let matrix = Matrix::upload(&device, &stream, "w", BlockType::Q8_0, 2, 32, &row.repeat(2))?;
//! let x = Buffer::with(&device, &stream, "x", &[1.0f32; 32])?;
//! let out = Buffer::new(&device, "out", 2 * 4)?;
//! let linear = Linear {
//!     matrix: &matrix,
//!     x: Rows::vector(&x, 32),
//!     bias: None,
//!     residual: None,
//!     out: Rows::vector(&out, 2),
//! };
//! matvec(&kernels, &stream, &linear)?;
//! let mut found = [0.0f32; 2];
//! out.read(&stream, 0, &mut found)?;
//! assert_eq!(found, [496.0, 496.0]);
//! # Ok::<(), Error>(())
//! ```

pub use realizar_quant::BlockType;
pub use realizar_types::{
    Activation, DrawOfBest, Groups, NextToken, NormKind, RopeStyle, Scoring, ShareScale, SharesOf,
    Shortlist, ShortlistLimits, ShortlistRow,
};

mod error;
#[cfg(feature = "bench")]
pub use error::BenchError;
pub use error::{Error, Version};

mod device;
#[cfg(any(test, feature = "interpreter"))]
pub use device::Interpreter;
pub use device::{
    Address, Argument, Buffer, Device, Driver, DriverRank, GpuInfo, Launch, MAX_ARGUMENTS,
};

mod matrix;
pub use matrix::{BLOCK_TYPES, Matrix, pack_rows, packed_row_bytes};

mod pages;
pub use pages::{KvPages, KvSpec};

mod states;
pub use states::{StateLayer, StateSpec};

mod image;

mod kernels;
pub use kernels::{AttentionArithmetic, Kernels, launches_of_thread, takes_parts, takes_quantized};

mod ops;
pub use ops::{
    Attention, AttentionScratch, Captured, DecodeAttention, DeltaNet, DeltaNetSpec, Elementwise,
    ExpertLinear, ExpertPairs, GatedGrouped, GatedQuantized, GatedRows, Greedy, Grouped,
    GroupedRows, HalfRows, HalfType, Halves, HeadNorm, Linear, LinearGrouped, LinearHalf,
    LinearQuantized, List, MAX_GATED_ROWS, MAX_PARTS, NO_TOKEN, NewHeads, Norm, PairTiles,
    PrefillAttention, PrefillResults, ProductRows, QuantType, Quantized, QuantizedRows, RankRows,
    RopeAngles, RopeStore, Routing, Rows, ShortConv, ShortlistScratch, Shortlists, SortedPairs,
    StateLists, TILE_ROWS, Tables, WgmmaKernels, all_gather, all_reduce, attention_decode,
    attention_prefill, combine, delta_net, elementwise, embed, expert_bias, expert_matmul,
    expert_matmul_half, expert_matmul_int8, expert_matvec, expert_matvec_int8, gated_quantized,
    gated_wgmma, group_rows, half_type, is_worth_sorting, is_worth_splitting, kv_store, matmul,
    matmul_half, matmul_int8, matmul_wgmma, matvec, matvec_parts, matvec_quantized, norm, quantize,
    quantize_activated, quantize_norm, reorder, rope, rope_store, rope_table, round_rows,
    rounds_results, route, select_rows, short_conv, sort_by_expert, split_rows, takes_new_heads,
    takes_own_halves,
};

#[cfg(feature = "bench")]
pub mod bench;

#[cfg(any(test, feature = "tests"))]
mod testing;
#[cfg(feature = "tests")]
pub mod tests;
