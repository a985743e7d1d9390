//! One request on a loaded model: a text that goes on, or its embedding.
//!
//! A [`Session`] runs one sequence and keeps it between calls. How logits become an answer is
//! apart from that, as the engine does the same for many sequences at once.

pub(crate) mod answer;
mod chat;
pub(crate) mod embedding;
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
