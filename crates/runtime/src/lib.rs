//! Tokenizers, chat templates and sampling.
#![forbid(unsafe_code)]

pub mod sampling;
pub mod template;
pub mod tokenizer;
