//! The endpoints, a folder for each API that the server speaks.

pub mod anthropic;
pub(crate) mod dialects;
pub(crate) mod llama;
pub(crate) mod mcp;
pub(crate) mod ollama;
pub(crate) mod openai;
pub mod responses;
pub(crate) mod scores;
pub(crate) mod status;
