//! CPU kernels for transformer inference on plain slices, and the thread team
//! that runs them.
#![deny(unsafe_op_in_unsafe_fn)]

mod matmul;
mod quantize;
mod rows;
mod team;
#[cfg(test)]
mod testing;
mod tier;
mod vec_dot;

pub use matmul::{Epilogue, MatrixRef, PanelScratch, matmul_f32, matmul_int8};
pub use quantize::QuantizedRows;
pub use rows::{Rows, RowsMut};
pub use team::{PerThread, Team, default_threads};
#[cfg(target_arch = "x86_64")]
pub use tier::Avx2;
pub use tier::Tier;
pub use vec_dot::{supports_weights, takes_quantized};
