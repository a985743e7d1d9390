//! The server over HTTP, on a tiny model: what clients see of it.

mod chat;
mod common;
mod completions;
mod document;
mod endpoints;
mod errors;
mod lifecycle;
mod openapi;
mod structured;
