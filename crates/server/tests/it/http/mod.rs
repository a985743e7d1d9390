//! The server over HTTP, on a tiny model: what clients see of it.

mod agents;
mod bodies;
mod chat;
mod common;
mod completions;
mod connections;
mod document;
mod endpoints;
mod errors;
mod hosts;
mod ignored;
mod keep_alive;
#[cfg(feature = "kv-events")]
mod kv_events;
mod lifecycle;
mod llama;
mod mcp;
mod messages;
mod ollama;
mod openapi;
mod reasoning;
mod records;
mod registry;
mod responses;
mod sampling;
mod scores;
mod stored;
mod structured;
mod unloaded;
