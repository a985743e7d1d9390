//! Anthropic's messages API: its requests become conversations, and answers become its messages
//! and events. Nothing here serves HTTP.

mod blocks;
mod documents;
mod request;
mod response;
mod tools;

pub use request::read_request;
pub use response::{MessageStream, message};
