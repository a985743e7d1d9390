//! OpenAI's responses API: its requests become conversations, and answers become its responses and
//! events. Nothing here serves HTTP, and no response is stored.

mod request;
mod response;

pub use request::{ResponsesRequest, read_request};
pub use response::{ResponseHead, ResponseStream, response};
