//! The HTTP server: OpenAI's and Anthropic's APIs over the engine, streaming, metrics, admission.
#![forbid(unsafe_code)]

pub mod anthropic;
mod chat_parser;
pub mod conversation;
mod fields;
mod messages;
mod reasoning;
pub mod responses;
pub mod tools;

pub use chat_parser::{ChatDelta, ChatParser, ChatParserOptions};
pub use fields::InvalidRequest;
pub use messages::TemplateTraits;
pub use reasoning::ReasoningFormat;
pub use tools::ToolFormat;
