//! OpenAI's API: completions, chat completions, embeddings and models, each in its file.

mod agents;
pub(crate) mod chat;
mod chat_chunks;
pub(crate) mod completions;
pub(crate) mod conversation;
pub(crate) mod embeddings;
pub(crate) mod legacy;
mod logit_bias;
pub(crate) mod logprobs;
pub(crate) mod models;
pub(crate) mod refused;
pub(crate) mod samplers;
pub(crate) mod sampling;
pub(crate) mod stored;
pub(crate) mod structured;
mod text_offset;
mod truncation;
pub(crate) mod types;
