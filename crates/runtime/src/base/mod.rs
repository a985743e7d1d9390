//! What every floor may use and what knows nothing of models: sizes in messages, panics as values,
//! files that a run wrote for a later one, threads whose work can wait.

mod byte_size;
pub(crate) mod own_file;
pub mod panics;
mod priority;

pub use byte_size::ByteSize;
pub use priority::lower_priority;

/// Bytes of a JSON file beside a model's weights, but for `tokenizer.json`.
pub(crate) const MAX_JSON: usize = 8 << 20;
