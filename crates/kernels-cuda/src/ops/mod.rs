//! The operations: a function checks shapes, and queues one launch. `kernels.rs` holds what is loaded, `rows.rs` what
//! operations work on.

mod attention;
mod elementwise;
mod embed;
mod kernels;
mod kv_store;
mod matvec;
mod norm;
mod rope;
mod rows;

pub use attention::{Attention, AttentionScratch, Tables, attention_decode};
pub use elementwise::{Activation, Elementwise, elementwise};
pub use embed::{embed, select_rows};
pub use kernels::Kernels;
pub use kv_store::kv_store;
pub use matvec::{Linear, matvec};
pub use norm::{Norm, NormKind, norm};
pub use rope::{Pairs, RopeAngles, rope, rope_table};
pub use rows::{List, Rows};
