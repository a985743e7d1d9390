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

pub mod anthropic;
mod app;
mod auth;
mod chat_parser;
mod config;
pub mod conversation;
mod dialects;
mod error;
mod extract;
mod fields;
mod generation;
mod health;
mod ids;
mod info;
mod messages;
mod metrics;
mod native;
mod openai;
mod openapi;
mod page;
mod prompt;
mod reasoning;
mod request_id;
pub mod responses;
mod sse;
mod state;
pub mod tools;

pub use app::{Server, app, serve};
pub use chat_parser::{ChatDelta, ChatParser, ChatParserOptions};
pub use config::{Limits, ServerConfig};
pub use error::{ApiError, Error};
pub use fields::InvalidRequest;
pub use messages::TemplateTraits;
pub use reasoning::ReasoningFormat;
pub use state::{AppState, Models, ServedModel, openai_sampling};
pub use tools::ToolFormat;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
