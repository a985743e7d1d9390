//! Loaded models: steps of many sequences, generation, and the engine.
//!
//! The modules are floors: the lowest comes first, and each uses only those before it.
//!
//! | floor | what it holds |
//! |---|---|
//! | [`run`] | a loaded model: its parts on their devices, and steps of sequences |
//! | [`generate`] | one request: an answer, an embedding, a saved session |
//! | [`engine`] | many requests at once |
//! | [`measure`] | speed, and how well a text is predicted |
//!
//! - `run`: `model` loads with `options`, `placement` decides which part runs where, `kv_room` and `context` size the
//!   cache, `device` finds backends, `prompt` and `rules` describe prompts, `runner` runs steps.
//! - `generate`: `answer` goes from logits to text, for sessions and engine alike; `session` is one sequence, `reply` a
//!   generation that is consumed as it runs, `session_file` a saved session.
//! - `engine`: `worker` is the loop, `queue` has waiting and running sequences, `schedule` plans a step and `step` runs
//!   it, `speculate` drafts tokens, `masks` computes grammar masks, `stream` gives a request's events.
//!
//! The crates below are re-exported: [`tokenizer`], [`template`], [`sampling`] and [`constrain`]; [`checkpoint`], [`graph`] and
//! [`architectures`]; and [`backend`].
//!
//! A [`Model`] is loaded from a GGUF file or a Hugging Face directory onto a
//! [`backend::Backend`]. Its architecture records a [`graph::Graph`], which is
//! fused, laid out as a [`plan::Plan`] and run for ragged batches over a paged
//! key-value cache by a [`Runner`].
//!
//! ```
//! use realizar_runtime::template::Message;
//! use realizar_runtime::{GenerateParams, Model};
//!
//! # fn main() -> Result<(), realizar_runtime::Error> {
//! // A model of 32 tokens that says how the alphabet goes on.
//! let mut model = Model::open("examples/alphabet.gguf")?;
//! // Tokens are chosen as its files say, as long as the parameters do not.
//! let params = GenerateParams::default();
//! let answer = model.chat(&[Message::user("abc")], &params)?.finish()?;
//! assert_eq!(answer.text, "defghijklmnopqrstuvwxyz");
//!
//! // As it is generated:
//! for piece in model.chat(&[Message::user("tuv")], &params)? {
//!     print!("{}", piece?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! An answer that follows a grammar:
//!
//! ```
//! use realizar_runtime::constrain::{Constrainer, Grammar};
//! use realizar_runtime::template::Message;
//! use realizar_runtime::{GenerateParams, Model};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut model = Model::open("examples/alphabet.gguf")?;
//! let grammar = Grammar::Choice(vec!["cat".to_owned(), "dog".to_owned()]);
//! let constraint = Constrainer::new(model.tokenizer()?)?.compile(&grammar)?;
//! let params = GenerateParams { constraint: Some(constraint), ..GenerateParams::default() };
//! let mut session = model.new_session();
//! // Unconstrained, it would continue the alphabet.
//! let reply = session.chat(&mut model, &[Message::user("abc")], &params)?;
//! assert_eq!(reply.finish()?.text, "dog");
//! # Ok(())
//! # }
//! ```
//!
//! [`Session::chat`] keeps a conversation, [`Session::generate`] takes tokens and reports everything about each that it
//! makes, and [`engine::Engine::chat`] answers many at once, to threads and to async programs.
#![forbid(unsafe_code)]

pub use realizar_base::{ByteSize, lower_priority, panics};

pub use realizar_text::{constrain, sampling, template, tokenizer};

mod error;
pub use error::Error;
pub use realizar_backends::Error as BackendError;
pub use realizar_model::Error as LoadError;

pub use realizar_model::{ModelOutput, Pooling, supported_gguf, supported_hf};
pub use realizar_model::{architectures, checkpoint, config, graph, plan, rope, weights};

pub use realizar_backends as backend;
pub use realizar_backends::{
    DeviceFault, Fingerprint, MemoryUse, PackedCache, PackedFiles, metrics,
};

pub mod run;
pub use run::{
    CardText, Chunk, DeviceLayers, DraftHead, LoadOptions, Model, ModelCard, OutputRows, Outputs,
};
pub use run::{Embeddings, PlacedPart, Placement, Prompt, Rows, Runner, SeqId, device};
pub use run::{POOL_SEQ_LEN, default_context};

pub mod generate;
pub use generate::{EmbedParams, Event, FinishReason, GenerateParams, Generation, Reply, Session};
pub use generate::{StopCause, Timings, TokenEvent, TopLogprob};

pub mod engine;

/// Types of weights, and of keys and values: of all crates the same.
pub use realizar_quant::BlockType;

pub mod measure;
pub use measure::{BenchTest, Estimate, KlDivergence, Perplexity};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
