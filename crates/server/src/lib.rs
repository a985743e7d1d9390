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

mod answer;
mod api;
mod app;
mod chat;
mod config;
mod error;
mod fields;
mod http;
mod ids;
#[cfg(feature = "kv-events")]
mod kv_events;
mod openapi;
mod page;
mod record;
mod registry;
mod server;
mod state;

pub use api::{anthropic, responses};
pub use app::app;
pub use chat::messages::TemplateTraits;
pub use chat::parser::{ChatDelta, ChatParser, ChatParserOptions};
pub use chat::reasoning::ReasoningFormat;
pub use chat::tools::ToolFormat;
pub use chat::{conversation, tools};
pub use config::{ConnectionLimits, Limits, ServerConfig, TlsFiles};
pub use error::{ApiError, Error, LoadError};
pub use fields::InvalidRequest;
#[cfg(feature = "kv-events")]
pub use kv_events::{KvEvents, KvEventsConfig};
pub use record::{RequestObserver, RequestRecord};
pub use registry::served::{ServedModel, openai_sampling};
pub use registry::{ModelLoader, ModelSpec, Models, ModelsConfig};
pub use server::{Server, serve};
pub use state::AppState;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
