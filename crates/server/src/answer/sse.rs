//! Server-sent events: what happens to an answer becomes a stream of chunks.

use crate::answer::generation::{Generation, Progress, Usage};
use crate::error::ApiError;
use crate::state::AppState;
use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Serialize;
use std::collections::VecDeque;
use std::convert::Infallible;

/// The chunks of one API's streams.
pub(crate) trait Chunks: Send + 'static {
    /// Adds what is to be told of `progress`; `usage` includes it.
    fn progress(
        &mut self,
        progress: Progress,
        usage: Usage,
        out: &mut VecDeque<Event>,
    ) -> Result<(), ApiError>;
    /// Adds the end of a complete stream.
    fn end(&mut self, usage: Usage, out: &mut VecDeque<Event>);
    /// Adds what is told of a failure, which is the last thing that is told.
    fn fail(&mut self, error: &ApiError, out: &mut VecDeque<Event>) {
        out.push_back(json(&error.body()));
    }
}

/// An event that carries `value` as JSON.
pub(crate) fn json(value: &impl Serialize) -> Event {
    match serde_json::to_string(value) {
        Ok(text) => Event::default().data(text),
        Err(error) => {
            Event::default().data(ApiError::internal(error.to_string()).body().to_string())
        }
    }
}

/// Answers with the chunks of a generation. A failure is told by an event with the error, which is
/// then the last one. Comments keep the connection alive while there is nothing to tell. A client
/// that leaves drops the generation, which cancels it, and so does one that reads too slowly.
pub(crate) fn respond(state: &AppState, generation: Generation, chunks: impl Chunks) -> Response {
    generation.bound_backlog(state.config().connections.backlog_bytes);
    let running = Running { generation, chunks, out: VecDeque::new(), ended: false };
    let events = stream::unfold(running, |mut running| async move {
        let event = running.next().await?;
        Some((Ok::<_, Infallible>(event), running))
    });
    let keep_alive = KeepAlive::new().interval(state.config().keep_alive);
    let mut response = Sse::new(events).keep_alive(keep_alive).into_response();
    // Proxies that collect answers are asked not to.
    let name = HeaderName::from_static("x-accel-buffering");
    response.headers_mut().insert(name, HeaderValue::from_static("no"));
    response
}

struct Running<C> {
    generation: Generation,
    chunks: C,
    out: VecDeque<Event>,
    ended: bool,
}

impl<C: Chunks> Running<C> {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.out.pop_front() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            let progress = self.generation.next().await;
            let usage = self.generation.usage();
            match progress {
                None => {
                    self.ended = true;
                    self.chunks.end(usage, &mut self.out);
                }
                Some(progress) => {
                    let told = progress
                        .and_then(|progress| self.chunks.progress(progress, usage, &mut self.out));
                    if let Err(error) = told {
                        tracing::error!("a stream ends early: {error}");
                        self.ended = true;
                        self.chunks.fail(&error, &mut self.out);
                    }
                }
            }
        }
    }
}
