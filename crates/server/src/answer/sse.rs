//! Server-sent events: the pieces of a stream for browsers and for most SDKs.

use super::generation::Generation;
use super::stream::{self, Chunks};
use crate::error::ApiError;
use crate::state::AppState;
use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::time::Duration;

/// An event that carries `value` as JSON.
pub(crate) fn json(value: &impl Serialize) -> Event {
    match serde_json::to_string(value) {
        Ok(text) => Event::default().data(text),
        Err(error) => {
            Event::default().data(ApiError::internal(error.to_string()).body().to_string())
        }
    }
}

/// The event for a failure in OpenAI's shape.
pub(crate) fn failure(error: &ApiError) -> Event {
    json(&error.body())
}

/// Answers with the chunks of a generation. Comments keep the connection alive while there is nothing
/// to tell.
pub(crate) fn respond(
    state: &AppState,
    generation: Generation,
    chunks: impl Chunks<Piece = Event>,
) -> Response {
    respond_every(state, generation, chunks, Some(state.config().keep_alive))
}

/// As [`respond`], with a comment after each `interval` of silence, or with none.
pub(crate) fn respond_every(
    state: &AppState,
    generation: Generation,
    chunks: impl Chunks<Piece = Event>,
    interval: Option<Duration>,
) -> Response {
    let events = Sse::new(stream::pieces(state, generation, chunks));
    let mut response = match interval {
        Some(interval) => events.keep_alive(KeepAlive::new().interval(interval)).into_response(),
        None => events.into_response(),
    };
    // Proxies that collect answers are asked not to.
    let name = HeaderName::from_static("x-accel-buffering");
    response.headers_mut().insert(name, HeaderValue::from_static("no"));
    response
}
