//! What stays on the device from step to step: packed weight matrices, and keys and values in pages.

pub(crate) mod kv;
pub(crate) mod matrix;
pub(crate) mod pack;

pub use kv::{KvLayer, KvSpec};
pub use matrix::Matrix;
pub use pack::{pack_rows, packed_row_bytes};
