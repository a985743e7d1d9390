//! The operations. Each is a function that checks shapes and devices and queues a launch.
//!
//! `rows.rs` has the operands that most of them share.

mod attention;
mod capture;
mod delta_net;
mod elementwise;
mod embed;
mod experts;
mod gated;
mod kv_store;
mod levels;
mod linear_quantized;
mod matmul;
mod matvec;
mod matvec_parts;
mod matvec_quantized;
mod norm;
mod quantize;
mod ranks;
mod recurrent;
mod rope;
mod round;
mod route;
mod rows;
mod short_conv;
mod shortlist;
#[cfg(feature = "tests")]
pub(crate) mod tests;
mod wgmma;

pub use attention::{
    Attention, AttentionScratch, DecodeAttention, PrefillAttention, PrefillResults, TILE_ROWS,
    Tables, attention_decode, attention_prefill, rounds_results, takes_new_heads,
};
pub use capture::Captured;
pub use delta_net::{DeltaNet, DeltaNetSpec, delta_net};
pub use elementwise::{Elementwise, elementwise};
pub use embed::{embed, select_rows};
pub use experts::{
    ExpertLinear, ExpertPairs, PairTiles, SortedPairs, expert_matmul, expert_matmul_half,
    expert_matmul_int8, expert_matvec, expert_matvec_int8, is_worth_sorting, sort_by_expert,
    takes_own_halves,
};
pub use gated::{GatedQuantized, GatedRows, MAX_GATED_ROWS, gated_quantized};
pub use kv_store::{HeadNorm, NewHeads, RopeStore, kv_store, rope_store};
pub use linear_quantized::{LinearQuantized, MAX_PARTS};
pub use matmul::{LinearHalf, matmul, matmul_half, matmul_int8};
pub use matvec::{Linear, matvec};
pub use matvec_parts::{is_worth_splitting, matvec_parts};
pub use matvec_quantized::matvec_quantized;
pub use norm::{Norm, norm};
pub use quantize::{
    ProductRows, QuantType, Quantized, QuantizedRows, quantize, quantize_activated, quantize_norm,
};
pub use ranks::{RankRows, all_gather, all_reduce};
pub use recurrent::StateLists;
pub use rope::{RopeAngles, rope, rope_table};
pub use round::{HalfRows, HalfType, Halves, half_type, round_rows, split_rows};
pub use route::{Routing, combine, expert_bias, reorder, route};
pub use rows::{List, Rows};
pub use short_conv::{ShortConv, short_conv};
pub use shortlist::{Greedy, NO_TOKEN, ShortlistScratch, Shortlists};
pub use wgmma::{
    GatedGrouped, Grouped, GroupedRows, LinearGrouped, WgmmaKernels, gated_wgmma, group_rows,
    matmul_wgmma,
};
