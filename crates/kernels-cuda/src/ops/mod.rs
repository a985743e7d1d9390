//! The operations: a function checks shapes, and queues one launch.

mod attention;
mod matvec;
mod rows;

pub use attention::{Attention, AttentionScratch, attention, kv_store};
pub use matvec::{Linear, matvec};
pub use rows::{Gated, Pairs, Rope, add, embed, glu, layer_norm, rms_norm, rope};
