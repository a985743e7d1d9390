//! CPU kernels for transformer inference on plain slices, and the thread team
//! that runs them.
#![deny(unsafe_op_in_unsafe_fn)]

mod activation;
mod attention;
mod elementwise;
mod embed;
mod error;
mod kv;
#[cfg(target_arch = "x86_64")]
mod lanes;
pub mod math;
mod norm;
mod rope;
mod rows;
mod team;
mod tier;

pub use activation::{Activation, activate_in_place, activate_row, gated, gated_row};
pub use attention::{AttnParams, AttnScratch, AttnSeq, attention};
pub use elementwise::{
    add, add_bias_in_place, add_in_place, copy_rows, gather_rows, mul, mul_in_place,
    scale_in_place, softcap_in_place,
};
pub use embed::embed;
pub use error::Error;
pub use kv::{KvGeometry, KvSlot, kv_store};
pub use norm::{Norm, layer_norm, norm_row, norm_row_in_place, rms_norm, rms_norm_in_place};
pub use rope::{RopeStyle, rope, rope_table};
pub use rows::{Rows, RowsMut};
pub use team::{PerThread, Team, default_threads};
#[cfg(target_arch = "x86_64")]
pub use tier::Avx2;
pub use tier::Tier;
