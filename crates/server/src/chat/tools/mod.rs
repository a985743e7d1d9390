//! Tool calls: what a request says of them, and how they are found in what a model writes.
//!
//! `request` checks the tools of a request, `grammar` makes the schema that forces a call, `forced` the
//! grammar that forces one in the model's own format, `auto` that of an answer in which calls are the model's choice.
//! Both are written by `writer`, with `values` and `parameters`, which reads schemas, from the `layout` of the format. `format`
//! lists the ways in which models write calls, and `parser` finds them in an answer. What a call
//! itself looks like is known to its reader: `call`, `elements`, `python`, `gemma`. `harmony` reads
//! answers that come as messages in channels. `closing` closes arguments that end early, and `custom` makes the input of custom tools of theirs.

mod arguments;
mod auto;
mod call;
pub(crate) mod closing;
pub(crate) mod custom;
mod elements;
mod forced;
mod format;
mod gemma;
mod grammar;
pub(crate) mod harmony;
mod ids;
mod json;
mod layout;
mod parameters;
pub(crate) mod parser;
mod python;
pub(crate) mod reader;
mod request;
mod values;
mod writer;

pub use super::delta::CallKind;
pub use auto::call_grammar;
pub use forced::forced_grammar;
pub use format::{ToolFormat, UnknownParser};
pub use grammar::tool_schema;
pub use ids::{CallIds, IdStyle};
pub use request::{Function, TextGrammar, ToolChoice, ToolInput, ToolRequest};
pub(crate) use request::{FunctionAt, INPUT, MAX_NAME_LEN, in_name};
