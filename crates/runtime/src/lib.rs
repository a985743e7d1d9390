//! Models as graphs, plans and backends; tokenizers, chat templates, sampling,
//! generation.
//!
//! The modules are floors: the lowest comes first, and each uses only those before it.
//!
//! | floor | what it holds |
//! |---|---|
//! | [`text`] | tokenizers, chat templates, sampling and grammars: text and ids, no model |
//! | [`checkpoint`] | model files: their settings, and their tensors by name |
//! | [`graph`] | operations, what a weight is, fusions, the split in parts, the plan |
//! | [`architectures`] | from a checkpoint's settings and weights to a graph, a file per family |
//! | [`backend`] | from a plan to an executable on a device, and what it reports |
//! | [`run`] | a loaded model: its parts on their devices, and steps of sequences |
//! | [`generate`] | one request: an answer, an embedding, a saved session |
//! | [`engine`] | many requests at once |
//! | [`measure`] | speed, and how well a text is predicted |
//!
//! Below them all are sizes in messages, [panics as values](panics) and threads that
//! [can wait](lower_priority). [`Error`] is the error of all but [`text`], whose modules have their own.
//!
//! A [`Model`] is loaded from a GGUF file or a Hugging Face directory onto a
//! [`backend::Backend`]. Its architecture records a [`graph::Graph`], which is
//! fused, laid out as a [`plan::Plan`] and run for ragged batches over a paged
//! key-value cache by a [`Runner`].
//!
//! ```no_run
//! use realizar_runtime::backend::cpu::CpuBackend;
//! use realizar_runtime::tokenizer::EncodeOptions;
//! use realizar_runtime::{Event, GenerateParams, LoadOptions, Model};
//! use std::ops::ControlFlow;
//! use std::path::Path;
//!
//! # fn main() -> Result<(), realizar_runtime::Error> {
//! let backend = CpuBackend::new(None, None)?;
//! let mut model = Model::load(Path::new("model.gguf"), &backend, &LoadOptions::default())?;
//! let options = EncodeOptions { add_special: true, parse_special: false };
//! let ids = model.tokenizer()?.encode("The capital of France is", options)?;
//! let params = GenerateParams { max_tokens: Some(32), ..GenerateParams::default() };
//! let mut session = model.new_session();
//! session.generate(&mut model, &ids, &params, &mut |event| {
//!     if let Event::Token(token) = event {
//!         print!("{}", token.text);
//!     }
//!     ControlFlow::Continue(())
//! })?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod base;
pub use base::{ByteSize, lower_priority, panics};

pub mod text;
pub use text::{constrain, sampling, template, tokenizer};

mod error;
pub use error::{DeviceFault, Error};

pub mod checkpoint;
pub use checkpoint::Pooling;

pub mod graph;
pub use graph::{plan, weights};

pub mod architectures;
pub use architectures::{ModelOutput, config, rope, supported_gguf, supported_hf};

pub mod backend;
pub use backend::{Fingerprint, MemoryUse, PackedCache, PackedFiles, metrics};

pub mod run;
pub use run::{
    Chunk, DEFAULT_MAX_SEQ_LEN, DeviceLayers, DraftHead, LoadOptions, Model, OutputRows, Outputs,
};
pub use run::{Embeddings, PlacedPart, Placement, Prompt, Rows, Runner, SeqId, device};

pub mod generate;
pub use generate::{EmbedParams, Event, FinishReason, GenerateParams, Generation, Session};
pub use generate::{StopCause, Timings, TokenEvent, TopLogprob};

pub mod engine;

pub mod measure;
pub use measure::{BenchTest, Estimate, KlDivergence, Perplexity};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
