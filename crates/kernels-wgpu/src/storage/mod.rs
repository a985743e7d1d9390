//! Data that stays on the device between steps: packed weight matrices, paged keys and values, and recurrent
//! states in slots.

pub(crate) mod kv;
pub(crate) mod matrix;
pub(crate) mod pack;
pub(crate) mod states;

pub use kv::{KvLayer, KvSpec};
pub use matrix::Matrix;
pub use pack::{pack_rows, packed_row_bytes};
pub use states::{StateLayer, StateLists, StateSpec};
