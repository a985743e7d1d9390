//! Tokenizers, chat templates and sampling.
#![forbid(unsafe_code)]

pub mod tokenizer;
