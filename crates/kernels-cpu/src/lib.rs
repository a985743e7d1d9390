//! CPU kernels for transformer inference on plain slices, and the thread team that runs them.
//!
//! Kernels take [`Rows`] of f32 (one row per token), a [`Team`] of threads, and a [`Tier`], the
//! instruction set detected at run time. They know no model and no file, and allocate nothing. Each
//! row of a result is computed from its own inputs in a fixed order, so its bits depend neither on the
//! other rows nor on the number of threads.
//!
//! Matrix products read weights in the block types of `realizar-quant`:
//!
//! - [`matmul_packed`] multiplies quantized weights, packed by [`pack`], with 8-bit activations. Its
//!   bits are the same on every tier. Decode rows always take it; prefill rows take the arithmetic of
//!   [`Tier::prompt_arithmetic`]. Activations in two planes ([`QuantizedRows::quantize_in_planes`])
//!   have 16 bits, at twice the cost.
//! - [`matmul_bf16`] multiplies in BF16 on matrix units.
//! - [`matmul_f32`] multiplies weights of any type with F32 activations.
//! - [`matmul_rows`] does so for float weights and few rows.
//!
//! | modules | what they hold |
//! |---|---|
//! | `tier`, `features`, `topology` | instruction sets as tokens that exist only if they were detected; cores, caches and nodes |
//! | `team`, `pages`, `memory` | the threads, and large memory in huge pages on the node of the thread that first touches it |
//! | `rows` | matrices of F32 with a stride |
//! | `packed` | quantized weights in packed form: a description per type (`types`, `few_bits`, `points`), and kernels per tier |
//! | `vec_dot` | the widening to F32 per type, and dot products of float types |
//! | `quantize`, `streams`, `matmul` | activations as 8-bit integers; the order in which weights are read; the products |
//! | `tiles` | products of BF16 tiles, in AMX and in software |
//! | `lanes` | vectors of 8 and 16 lanes, scalar, AVX2 and AVX-512, over which other kernels are written once |
//! | `attention`, `kv` | attention over pages, storing keys and values |
//! | `recurrent`, `route`, `experts` | layers with a state; the selection of experts, and rows sorted by expert |
//! | `norm`, `rope`, `activation`, `elementwise`, `embed` | the rest of a layer |
//! | `logits`, [`math`] | maxima and integer sums over the vocabulary; exponentials and functions built on them |
//!
//! ```
//! use realizar_kernels_cpu::{
//!     BlockType, Epilogue, MatrixRef, PanelScratch, Rows, RowsMut, Team, Tier, matmul_f32,
//! };
//!
//! let team = Team::new(2);
//! let scratch = PanelScratch::new(&team);
//!
//! // A 2 x 3 matrix of f32 weights, and two rows of activations.
//! let w: Vec<u8> = [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|v| v.to_le_bytes()).collect();
//! let w = MatrixRef::new(BlockType::F32, 2, 3, &w);
//! let x = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0];
//!
//! let mut out = [0.0; 4];
//! matmul_f32(
//!     &team,
//!     Tier::detect(),
//!     &[w],
//!     Rows::new(&x, 2, 3),
//!     RowsMut::new(&mut out, 2, 2),
//!     &scratch,
//!     &Epilogue::default(),
//! );
//! assert_eq!(out, [1.0, 4.0, 6.0, 15.0]);
//! ```
#![deny(unsafe_op_in_unsafe_fn)]

mod activation;
mod attention;
mod elementwise;
mod embed;
mod error;
mod experts;
mod features;
mod kv;
mod lanes;
mod logits;
pub mod math;
mod matmul;
mod memory;
mod norm;
mod packed;
mod pages;
mod quantize;
mod recurrent;
mod rope;
mod route;
mod rows;
mod streams;
mod team;
#[cfg(test)]
mod testing;
mod tier;
mod tiles;
mod topology;
mod vec_dot;

pub use activation::{
    activate, activate_in_place, activate_quantize, activate_row, gated, gated_quantize, gated_row,
};
pub use attention::{AttnLimits, AttnParams, AttnScratch, AttnSeq, attention};
pub use elementwise::{
    add, add_bias_in_place, add_in_place, clamp_in_place, copy_rows, gather_rows, mul,
    mul_in_place, reorder_columns, scale_in_place, softcap_in_place,
};
pub use embed::embed;
pub use error::Error;
pub use experts::{ExpertInput, ExpertRows, add_expert_biases_in_place, combine};
pub use features::features;
pub use kv::{KvGeometry, KvSlot, kv_store};
pub use logits::{LOGIT_BLOCK, LogitShares, logit_maxima, logit_sums, logit_weight};
pub use matmul::{
    Bf16Scratch, Epilogue, ExpertParts, ExpertScratch, MatrixRef, PackedScratch, PanelScratch,
    WeightsRef, experts_bf16, experts_f32, experts_packed, experts_rows, matmul_bf16, matmul_f32,
    matmul_packed, matmul_rows,
};
pub use memory::MainMemory;
pub use norm::{Norm, norm, norm_in_place, norm_quantize, norm_row, norm_row_in_place};
pub use packed::{
    PACKED_LAYOUT, PACKED_ROWS, PackedMatrix, PackedRef, pack, pack_group, pack_groups,
    packed_bytes, packs,
};
pub use pages::Pages;
pub use quantize::QuantizedRows;
pub use realizar_quant::BlockType;
pub use realizar_types::{Activation, Groups, RopeStyle, Scoring, ShareScale};
pub use recurrent::{
    DeltaInputs, DeltaNet, DeltaScratch, LayerStates, NO_STATE, ShortConv, StateSeq, StateSteps,
    delta_net, short_conv,
};
pub use rope::{RopePositions, rope, rope_table};
pub use route::{MAX_EXPERTS, Routing, route};
pub use rows::{Rows, RowsMut};
pub use team::{Affinity, PerThread, Team};
#[cfg(target_arch = "aarch64")]
pub use tier::Neon;
#[cfg(target_arch = "x86_64")]
pub use tier::{AmxBf16, Avx512, AvxVnni};
pub use tier::{Avx2, Avx512Bf16, PackedArithmetic, SoftwareTiles, Tier};
pub use tiles::Bf16Rows;
pub use topology::{Cache, HugePages, Node, Topology, default_threads, huge_pages};
pub use vec_dot::{supports_rows, supports_weights};

/// Runs the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
