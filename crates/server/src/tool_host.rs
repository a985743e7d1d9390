//! Tools that the server runs for those who use its page.
//!
//! The server does not know what a tool is or where it runs: the program that it is a part of gives it
//! a [`ToolHost`], as `realizar serve --mcp` does with MCP servers. Nothing is called because a model
//! asks for it; a client does so by `POST /mcp/call`, after it has asked its user.

use std::fmt;
use std::pin::Pin;

use serde::Serialize;
use serde_json::{Map, Value};

/// Offers tools and calls them.
pub trait ToolHost: fmt::Debug + Send + Sync {
    /// Where tools come from, with those that could not be reached.
    fn sources(&self) -> Vec<ToolSource>;

    /// Calls a tool by the name of its function. Dropping the future cancels the call.
    fn call(&self, name: &str, arguments: Map<String, Value>) -> ToolCallFuture<'_>;
}

/// The end of a call: what the tool says, or why it could not be called.
pub type ToolCallFuture<'a> =
    Pin<Box<dyn Future<Output = Result<ToolOutput, ToolCallError>> + Send + 'a>>;

/// Where some tools come from.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSource {
    /// Its name.
    pub name: String,
    /// Its functions, in the form of a chat request's `tools`. No two sources have one of the same name.
    pub tools: Vec<Value>,
    /// Why it has none.
    pub error: Option<String>,
}

/// What a tool says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ToolOutput {
    /// The text for the model.
    pub content: String,
    /// The tool failed, and the text says why.
    pub is_error: bool,
}

/// Why a tool could not be called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ToolCallError {
    /// No source has it.
    #[error("unknown tool `{0}`")]
    Unknown(String),
    /// Its source does not answer, or refuses the call.
    #[error("{0}")]
    Failed(String),
}
