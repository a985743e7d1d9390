//! The HTTP server: OpenAI's API over the engine, with streaming, metrics and admission.
//!
//! [`serve`] runs a server, [`Server`] does so in two steps; [`app`] is the same as a service, for a program that has a server of
//! its own. [`Models`] holds the models by name, each a [`ServedModel`] around an engine.
//!
//! ```
//! use realizar_runtime::Model;
//! use realizar_runtime::engine::{Engine, EngineOptions};
//! use realizar_server::{Models, ServedModel, Server, ServerConfig};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let models = Models::new();
//!     let engine = Engine::start(Model::open("examples/alphabet.gguf")?, EngineOptions::default())?;
//!     models.add(ServedModel::new("alphabet", engine))?;
//!     // Any free port of this machine.
//!     let config = ServerConfig { port: 0, ..ServerConfig::default() };
//!     let server = Server::bind(config, models).await?;
//!     println!("listening on http://{}", server.address());
//!     // Until the future is ready: here at once.
//!     server.run(async {}).await?;
//!     Ok(())
//! }
//! ```
#![forbid(unsafe_code)]

mod answer;
mod api;
mod app;
mod chat;
mod config;
mod error;
mod fields;
mod hosts;
mod http;
mod ids;
pub mod ignored;
#[cfg(feature = "kv-events")]
mod kv_events;
mod openapi;
mod page;
mod record;
mod registry;
mod server;
mod state;
mod tool_host;

pub use api::{anthropic, responses};
pub use app::app;
pub use chat::delta::ChatDelta;
pub use chat::messages::TemplateTraits;
pub use chat::parser::{ChatParser, ChatParserOptions};
pub use chat::reasoning::ReasoningFormat;
pub use chat::tools::ToolFormat;
pub use chat::{conversation, tools};
pub use config::{ConnectionLimits, Limits, ServerConfig, TlsFiles};
pub use error::{ApiError, Error, LoadError};
pub use fields::InvalidRequest;
pub use ipnet::IpNet;
#[cfg(feature = "kv-events")]
pub use kv_events::{KvEvents, KvEventsConfig};
pub use realizar_runtime::template::TurnTraits;
pub use record::{RequestObserver, RequestRecord};
pub use registry::served::ServedModel;
pub use registry::{KeepAlive, ModelLoader, ModelSpec, Models, ModelsConfig, NoDuration};
pub use server::{Server, serve};
pub use state::AppState;
pub use tool_host::{ToolCallError, ToolCallFuture, ToolHost, ToolOutput, ToolSource};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
