//! One request on a loaded model: text generation or an embedding.
//!
//! A [`Session`] runs one sequence and keeps it between calls. `generator.rs` turns logits into tokens and
//! text, for sessions and for the engine, which runs many sequences at once.

mod chat;
pub(crate) mod embedding;
pub(crate) mod generator;
mod params;
mod reply;
mod session;
mod session_file;
mod steps;

pub(crate) use chat::chat_prompt;
pub use embedding::EmbedParams;
pub use params::{FinishReason, GenerateParams, StopCause, TopLogprob};
pub use reply::Reply;
pub(crate) use session::check_len;
pub use session::{Event, Generation, Session, Timings, TokenEvent};
