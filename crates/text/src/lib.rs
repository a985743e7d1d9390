//! Text and token ids, without a model.
//!
//! | module | feature | what it does |
//! |---|---|---|
//! | [`tokenizer`] | | text to token ids and back, from GGUF metadata or `tokenizer.json` |
//! | [`template`] | `templates` | a conversation to the text of a prompt, by the model's Jinja template |
//! | [`sampling`] | `sampling` | logits to the next token, log-probabilities, stop strings |
//! | [`constrain`] | `grammars` | masks of the tokens that a grammar allows next |
//!
//! Each module has its own error type. All features are on by default; without them the crate is a tokenizer.
//!
//! ```
//! use realizar_formats::Gguf;
//! use realizar_text::tokenizer::{EncodeOptions, Tokenizer};
//!
//! let gguf = Gguf::open("examples/alphabet.gguf")?;
//! let tokenizer = Tokenizer::from_gguf(gguf.metadata())?;
//! let ids = tokenizer.encode("cab", EncodeOptions { add_special: true, parse_special: false })?;
//! assert_eq!(tokenizer.decode(&ids, true)?, "cab");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

#[cfg(feature = "grammars")]
pub mod constrain;
#[cfg(feature = "sampling")]
pub mod sampling;
#[cfg(feature = "templates")]
pub mod template;
pub mod tokenizer;
