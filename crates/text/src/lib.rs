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
//! - In `tokenizer`, `gguf` and `hf` read vocabularies; `bpe`, `spm` and `pretokenizer` encode, `stream` decodes piece
//!   by piece.
//! - In `template`, `source`, `scan` and `budget` check and limit a template, `builtins` and `methods` have what Jinja2
//!   and Python have and minijinja lacks, `order` arranges messages as a template takes them.
//! - `template::guard` and `tokenizer::guard` keep user text from becoming control tokens.
//! - In `sampling`, `sampler` chooses a token; `filters`, `penalties`, `dry` and `mirostat` change the candidates,
//!   `stop` finds stop texts.
//! - In `constrain`, `schema` checks JSON schemas, `estimate` bounds what they grow to, `rewrite` prepares them for
//!   llguidance, `gbnf` and `lark` translate grammars, `state` gives the masks of one answer, and `reasoning` handles
//!   the text before the grammar.
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
