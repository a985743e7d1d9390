//! From a model's files to a plan: checkpoints, architectures, graphs. Nothing here computes, and no device is named.
//!
//! The modules are floors: the lowest comes first, and each uses only those before it.
//!
//! | module | what it holds |
//! |---|---|
//! | [`checkpoint`] | model files: their settings, and their tensors by name |
//! | [`graph`] | operations, weights, fusions, the split in parts and ranks, the [plan] |
//! | [`architectures`] | from a checkpoint's settings and weights to a graph, a file per family |
//!
//! [`architectures::record`] records a checkpoint's forward pass as a [`graph::Graph`]. A backend's
//! [`graph::Fusions`] rewrite it, and [`plan::plan`] gives every value a place in one arena.
//!
//! - `checkpoint`: `gguf_settings` and `hf_settings` read settings, `class` decides the meaning of an absent or null
//!   key of config.json, `names` has tensor names, `quantized` linears stored in several tensors, `unread` settings
//!   that no architecture read, `multimodal` and `ollama` other layouts of files, `pooling` the default of embeddings.
//! - `graph`: `builder` records, `fuse` and `select` rewrite, `split` and `shard` divide, `body` and `draft` are parts,
//!   `plan` lays out, `print` is the text form.
//! - `architectures`: `mod.rs` is the registry, `pieces` has the shared parts, `config` and `rope` the settings,
//!   `loader` finds, checks and binds weights, `experts` and `predictor` are parts of layers.
//!
//! ```
//! use realizar_model::checkpoint::Checkpoint;
//! use realizar_model::{ModelOutput, architectures};
//! use std::path::Path;
//!
//! let checkpoint = Checkpoint::open(Path::new("examples/alphabet.gguf"))?;
//! let config = architectures::config(&checkpoint)?;
//! let context = config.max_seq_len;
//! let model = architectures::record(&checkpoint, config, context, ModelOutput::Logits, false)?;
//! assert_eq!((model.config.layers.len(), model.config.dim), (1, 32));
//! println!("{}", model.graph);
//! # Ok::<(), realizar_model::Error>(())
//! ```
#![forbid(unsafe_code)]

mod error;
pub use error::Error;

pub mod checkpoint;
pub use checkpoint::Pooling;

pub mod graph;
pub use graph::{plan, weights};

pub mod architectures;
pub use architectures::{ModelOutput, config, rope, supported_gguf, supported_hf};
