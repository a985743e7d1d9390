//! What a conversation is, whichever API it came by: messages as templates read them, tools, and what
//! of an answer is content, reasoning or a tool call. Nothing here knows HTTP, models or engines.

pub mod conversation;
pub(crate) mod delta;
pub(crate) mod messages;
pub(crate) mod parser;
pub(crate) mod reasoning;
pub mod tools;
