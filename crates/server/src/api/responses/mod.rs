//! OpenAI's responses API.
//!
//! `request.rs`, `items.rs` and `tools.rs` read a request as a conversation, `response.rs` writes
//! its answer. `endpoint.rs` serves both, and `stored.rs` serves what is kept of them.

pub(crate) mod endpoint;
mod items;
mod request;
mod response;
pub(crate) mod stored;
mod tools;

pub use request::{ResponsesRequest, read_request};
pub use response::{ResponseHead, ResponseStream, response};
pub use tools::ToolNames;
