//! OpenAI's API: completions, chat completions and models, each in its file.

pub(crate) mod chat;
mod chat_chunks;
pub(crate) mod completions;
pub(crate) mod conversation;
mod logprobs;
pub(crate) mod models;
mod refused;
mod sampling;
mod structured;
mod types;
