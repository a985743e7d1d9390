//! Streams: what happens to an answer becomes the pieces of one API's stream.

use super::generation::{Generation, Progress, Usage};
use crate::error::ApiError;
use crate::state::AppState;
use futures_util::{Stream, stream};
use std::collections::VecDeque;
use std::convert::Infallible;

/// The chunks of one API's streams.
pub(crate) trait Chunks: Send + 'static {
    /// What is sent at a time.
    type Piece: Send;

    /// Adds the chunks for `progress`; `usage` includes it.
    fn progress(
        &mut self,
        progress: Progress,
        usage: Usage,
        out: &mut VecDeque<Self::Piece>,
    ) -> Result<(), ApiError>;
    /// Whether all is emitted, whatever the generation continues with.
    fn is_done(&self) -> bool {
        false
    }
    /// Adds the end of a complete stream.
    fn end(&mut self, usage: Usage, out: &mut VecDeque<Self::Piece>);
    /// Adds the chunk for a failure, which is the last one.
    fn fail(&mut self, error: &ApiError, out: &mut VecDeque<Self::Piece>);
}

/// The chunks of a generation. A failure is the last one. A client that disconnects drops the
/// generation, which cancels it, and so does one that reads too slowly.
pub(super) fn pieces<C: Chunks>(
    state: &AppState,
    generation: Generation,
    chunks: C,
) -> impl Stream<Item = Result<C::Piece, Infallible>> + Send + 'static {
    generation.bound_backlog(state.config().connections.backlog_bytes);
    let running = Running { generation, chunks, out: VecDeque::new(), ended: false };
    stream::unfold(running, |mut running| async move {
        let piece = running.next().await?;
        Some((Ok(piece), running))
    })
}

struct Running<C: Chunks> {
    generation: Generation,
    chunks: C,
    out: VecDeque<C::Piece>,
    ended: bool,
}

impl<C: Chunks> Running<C> {
    async fn next(&mut self) -> Option<C::Piece> {
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
                        tracing::error!("a stream ended early: {error}");
                        self.ended = true;
                        self.chunks.fail(&error, &mut self.out);
                    } else if self.chunks.is_done() {
                        self.ended = true;
                        self.chunks.end(usage, &mut self.out);
                    }
                }
            }
        }
    }
}
