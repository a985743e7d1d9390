//! From prompts to answers, for every API: token ids, grammars, a request's way through the engine,
//! and the stream that comes back.

pub(crate) mod compile;
pub(crate) mod embedding;
pub(crate) mod generation;
pub(crate) mod ndjson;
pub(crate) mod prompt;
pub(crate) mod sse;
pub(crate) mod stream;
