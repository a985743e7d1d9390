//! The operations: a function checks shapes, and queues one launch. `kernels.rs` holds what is loaded, `rows.rs` what
//! operations work on.

mod attention;
mod capture;
mod delta_net;
mod elementwise;
mod embed;
mod expert_kernels;
mod experts;
mod gated;
mod kernels;
mod kv_store;
mod levels;
mod matmul;
mod matvec;
mod matvec_parts;
mod matvec_quantized;
mod norm;
mod products;
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
    Attention, AttentionArithmetic, AttentionScratch, DecodeAttention, PrefillAttention,
    PrefillResults, TILE_ROWS, Tables, attention_decode, attention_prefill, rounds_results,
    takes_new_heads,
};
pub use capture::Captured;
pub use delta_net::{DeltaNet, DeltaNetSpec, delta_net};
pub use elementwise::{Activation, Elementwise, elementwise};
pub use embed::{embed, select_rows};
pub use experts::{
    ExpertLinear, ExpertPairs, PairTiles, SortedPairs, expert_matmul, expert_matmul_half,
    expert_matmul_int8, expert_matvec, expert_matvec_int8, is_worth_sorting, sort_by_expert,
    takes_own_halves,
};
pub use gated::{GatedQuantized, GatedRows, MAX_GATED_ROWS, gated_quantized};
#[cfg(feature = "bench")]
pub(crate) use kernels::launched_by;
pub use kernels::{Kernels, launches_of_thread};
pub use kv_store::{HeadNorm, NewHeads, RopeStore, kv_store, rope_store};
pub use matmul::{LinearHalf, matmul, matmul_half, matmul_int8};
pub use matvec::{Linear, matvec};
pub use matvec_parts::{is_worth_splitting, matvec_parts, takes_parts};
pub use matvec_quantized::{LinearQuantized, MAX_PARTS, matvec_quantized};
pub use norm::{Norm, NormKind, norm};
pub use products::takes_quantized;
pub use quantize::{
    ProductRows, QuantType, Quantized, QuantizedRows, quantize, quantize_activated, quantize_norm,
};
pub use ranks::{RankRows, all_gather, all_reduce};
pub use recurrent::StateLists;
pub use rope::{Pairs, RopeAngles, rope, rope_table};
pub use round::{HalfRows, HalfType, Halves, half_type, round_rows, split_rows};
pub use route::{Groups, Routing, Scoring, combine, expert_bias, reorder, route};
pub use rows::{List, Rows};
pub use short_conv::{ShortConv, short_conv};
pub use shortlist::{
    DrawOfBest, Greedy, NO_TOKEN, NextToken, SharesOf, Shortlist, ShortlistLimits, ShortlistRow,
    ShortlistScratch, Shortlists,
};
pub use wgmma::{
    GatedGrouped, Grouped, GroupedRows, LinearGrouped, WgmmaKernels, gated_wgmma, group_rows,
    matmul_wgmma,
};
