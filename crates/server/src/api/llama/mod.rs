//! llama-server's own endpoints, beside those of OpenAI's API that it shares.

pub(crate) mod models;
pub(crate) mod tokens;
