//! Models as graphs, plans and backends; tokenizers, chat templates, sampling,
//! generation.
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

mod answer;
pub mod backend;
mod bench;
pub mod checkpoint;
pub mod config;
pub mod constrain;
pub mod device;
mod embedding;
pub mod engine;
mod error;
mod fingerprint;
mod generate;
pub mod graph;
mod memory;
pub mod metrics;
mod model;
mod models;
mod own_file;
mod packed_cache;
pub mod panics;
mod perplexity;
mod placement;
pub mod plan;
pub mod rope;
mod runner;
pub mod sampling;
mod session_file;
pub mod template;
pub mod tokenizer;
pub mod weights;

pub use bench::BenchTest;
pub use embedding::{EmbedParams, Pooling};
pub use error::{DeviceFault, Error};
pub use fingerprint::Fingerprint;
pub use generate::{
    Event, FinishReason, GenerateParams, Generation, Session, StopCause, Timings, TokenEvent,
    TopLogprob,
};
pub use memory::{ByteSize, MemoryUse};
pub use model::{DEFAULT_MAX_SEQ_LEN, LoadOptions, Model, ModelOutput};
pub use models::{supported_gguf, supported_hf};
pub use packed_cache::{PackedCache, PackedFiles};
pub use perplexity::Perplexity;
pub use placement::{PlacedPart, Placement};
pub use runner::{Chunk, OutputRows, Outputs, Runner, SeqId};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
