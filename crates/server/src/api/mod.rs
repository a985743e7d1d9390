//! The endpoints, a folder for each API that the server speaks.

pub mod anthropic;
pub(crate) mod dialects;
pub(crate) mod llama;
pub(crate) mod mcp;
pub(crate) mod ollama;
pub(crate) mod openai;
pub(crate) mod paging;
pub mod responses;
pub(crate) mod scores;
pub(crate) mod status;

/// A number with the fewest digits that distinguish it from all other F32 numbers.
pub(crate) fn digits(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}
