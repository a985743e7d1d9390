//! The operations. Each function binds its kernels to buffers once, for any number of rows.

mod attention;
mod delta_net;
mod elementwise;
mod embed;
mod expert_bias;
mod experts;
mod kv_store;
pub(crate) mod linear;
mod matmul;
mod matvec;
mod norm;
pub(crate) mod quantize;
mod reorder;
mod rope;
mod select;
mod short_conv;
mod shortlist;

pub use attention::{
    Attention, AttentionScratch, AttentionSpec, SPLIT, Splits, TILE_ROWS, Tables, attention_decode,
    attention_next_wave, attention_prefill,
};
pub use delta_net::{DeltaNet, DeltaNetSpec, delta_net};
pub use elementwise::{Elementwise, elementwise};
pub use embed::embed;
pub use expert_bias::expert_bias;
pub use experts::{
    ExpertLinear, ExpertPairs, Routing, combine, expert_matmul, expert_matvec, expert_matvec_int8,
    route, sort_by_expert,
};
pub use kv_store::kv_store;
pub use linear::Linear;
pub use matmul::{MatmulOptions, matmul};
pub use matvec::{matvec, matvec_int8, takes_quantized};
pub use norm::{Norm, norm};
pub use quantize::{QuantizedRows, quantize};
pub use reorder::reorder;
pub use rope::{RopeAngles, rope, rope_table};
pub use select::{copy, select_rows};
pub use short_conv::{ShortConv, short_conv};
pub use shortlist::{ShortlistScratch, Shortlists};

use crate::dispatch::shader::Shader;

/// All shaders in all variants, for validation.
pub fn shaders() -> Vec<Shader> {
    [
        attention::shaders(),
        delta_net::shaders(),
        elementwise::shaders(),
        embed::shaders(),
        expert_bias::shaders(),
        experts::shaders(),
        kv_store::shaders(),
        matmul::shaders(),
        matvec::shaders(),
        norm::shaders(),
        quantize::shaders(),
        reorder::shaders(),
        rope::shaders(),
        select::shaders(),
        short_conv::shaders(),
        shortlist::shaders(),
    ]
    .concat()
}
