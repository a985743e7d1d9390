//! CPU kernels for transformer inference on plain slices, and the thread team
//! that runs them.
#![deny(unsafe_op_in_unsafe_fn)]

mod rows;
mod team;
mod tier;

pub use rows::{Rows, RowsMut};
pub use team::{PerThread, Team, default_threads};
#[cfg(target_arch = "x86_64")]
pub use tier::Avx2;
pub use tier::Tier;
