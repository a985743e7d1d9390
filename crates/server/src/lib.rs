//! The HTTP server: OpenAI's API over the engine, with streaming, metrics and admission.
//!
//! [`serve`] runs a server, [`Server`] does so in two steps; [`app`] is the same as a service, for a program that has a server of
//! its own. [`Models`] holds the models by name, each a [`ServedModel`] around an engine.
//!
//! The modules are floors: each uses only those before it. An endpoint is one file under `api`, one line in `app` and
//! its description in `openapi`.
//!
//! | floor | what it holds |
//! |---|---|
//! | `fields`, `ids`, [`ignored`], `record`, `tool_host` | fields of JSON, ids, request fields without effect, finished requests, tools |
//! | `config`, `error` | settings; the table of failures with their statuses |
//! | `chat`, `hosts`, `kv_events`, `page` | conversations of all APIs and the parts of an answer; hosts and origins; cache events; the page |
//! | `registry` | the models by name, loaded or not: leases, loads, unloads, memory |
//! | `state` | data that handlers share: samples for the dashboard, stored responses, tool calls |
//! | `http` | connections, TLS, keys, bodies |
//! | `answer` | from conversations to token ids, grammars, generation, streams |
//! | `api` | the endpoints, a folder per API |
//! | `openapi` | the description, served as `/openapi.json` |
//! | `app`, `server` | routes and layers; the server from its first connection to its end |
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
