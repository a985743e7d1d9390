//! Tests of the whole crate. One program, so that the crate is linked once for all of them.

mod auto_calls;
mod budgets;
mod chat_parser;
mod control_tokens;
mod cut_calls;
mod forced_calls;
mod http;
mod published_templates;
