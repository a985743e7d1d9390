//! Text and token ids, without a model: tokenizers, chat templates, how a token is chosen from
//! logits, and grammars that an answer must follow.
//!
//! Each module has its own error type.

pub mod constrain;
pub mod sampling;
pub mod template;
pub mod tokenizer;
