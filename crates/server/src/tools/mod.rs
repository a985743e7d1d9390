//! Tool calls: what a request says of them, and how they are found in what a model writes.
//!
//! `request` checks the tools of a request, `grammar` makes the schema that forces a call, `format`
//! lists the ways in which models write calls, and `parser` finds them in an answer.

mod call;
mod format;
mod grammar;
mod ids;
mod json;
pub(crate) mod parser;
mod request;

pub use format::{ToolFormat, UnknownParser};
pub use grammar::tool_schema;
pub use ids::{CallIds, IdStyle};
pub(crate) use request::FunctionAt;
pub use request::{Function, ToolChoice, ToolRequest};
