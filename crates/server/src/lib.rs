//! The HTTP server: OpenAI's API over the engine, with streaming, metrics and admission.
//!
//! [`serve`] runs a server; [`app`] is the same as a service, for a program that has a server of
//! its own. [`Models`] holds the models by name, each a [`ServedModel`] around an engine.
//!
//! ```no_run
//! use realizar_runtime::backend::cpu::CpuBackend;
//! use realizar_runtime::engine::{Engine, EngineOptions};
//! use realizar_runtime::{LoadOptions, Model};
//! use realizar_server::{Models, ServedModel, ServerConfig, serve};
//! use std::path::Path;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let backend = CpuBackend::new(None, None)?;
//! let model = Model::load(Path::new("model.gguf"), &backend, &LoadOptions::default())?;
//! let models = Models::new();
//! models.add(ServedModel::new("model", Engine::start(model, EngineOptions::default())?))?;
//! serve(ServerConfig::default(), models, std::future::pending()).await?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod admin;
pub mod anthropic;
mod app;
mod auth;
mod chat_parser;
mod compile;
mod config;
pub mod conversation;
mod dialects;
mod embedding;
mod error;
mod extract;
mod fields;
mod generation;
mod health;
mod history;
mod hosts;
mod ids;
mod info;
#[cfg(feature = "kv-events")]
mod kv_events;
mod listen;
mod members;
mod messages;
mod metrics;
mod native;
mod openai;
mod openapi;
mod page;
mod prompt;
mod reasoning;
mod record;
mod registry;
mod request_id;
mod rerank;
pub mod responses;
mod score;
mod served;
mod server;
mod sse;
mod state;
mod tls;
pub mod tools;
mod work;

pub use app::app;
pub use chat_parser::{ChatDelta, ChatParser, ChatParserOptions};
pub use config::{ConnectionLimits, Limits, ServerConfig, TlsFiles};
pub use error::{ApiError, Error, LoadError};
pub use fields::InvalidRequest;
#[cfg(feature = "kv-events")]
pub use kv_events::{KvEvents, KvEventsConfig};
pub use messages::TemplateTraits;
pub use reasoning::ReasoningFormat;
pub use record::{RequestObserver, RequestRecord};
pub use registry::{ModelLoader, ModelSpec, Models, ModelsConfig};
pub use served::{ServedModel, openai_sampling};
pub use server::{Server, serve};
pub use state::AppState;
pub use tools::ToolFormat;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
