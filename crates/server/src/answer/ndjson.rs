//! Lines of JSON: the pieces of a stream for clients of Ollama.

use super::generation::Generation;
use super::stream::{self, Chunks};
use crate::error::ApiError;
use crate::state::AppState;
use axum::body::Body;
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use serde_json::Value;
use std::convert::Infallible;

/// A line with `value`.
pub(crate) fn line(value: &Value) -> String {
    format!("{value}\n")
}

/// The line for a failure in Ollama's shape.
pub(crate) fn failure(error: &ApiError) -> String {
    line(&error.ollama_body())
}

/// Answers with the lines of a generation.
pub(crate) fn respond(
    state: &AppState,
    generation: Generation,
    chunks: impl Chunks<Piece = String>,
) -> Response {
    of(stream::pieces(state, generation, chunks))
}

/// Answers with lines as they come.
pub(crate) fn of(
    lines: impl Stream<Item = Result<String, Infallible>> + Send + 'static,
) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/x-ndjson"),
        // Proxies that collect answers are asked not to.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(lines)).into_response()
}
