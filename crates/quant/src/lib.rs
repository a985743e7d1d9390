//! Block types of quantized tensors.
#![forbid(unsafe_code)]

mod block_type;
mod error;

pub use block_type::BlockType;
pub use error::Error;
