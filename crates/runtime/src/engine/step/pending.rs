//! Sampled tokens that are not emitted yet.
//!
//! If the model runs asynchronously to the host, the next step is launched first. Texts are decoded,
//! searched for stop strings and emitted while it runs.

use crate::Error;
use crate::engine::queue::Queue;
use crate::engine::sequence::{RequestId, SeqKey, Stage};
use crate::engine::stats::Counters;
use crate::generate::generator::{Generator, Sample};
use std::path::Path;
use std::time::Instant;

/// A sampled token.
#[derive(Debug)]
struct PendingToken {
    key: SeqKey,
    sample: Sample,
    /// The answer, with the last token of a sequence that is complete.
    finished: Option<FinishedAnswer>,
}

/// An answer whose sequence is gone.
#[derive(Debug)]
struct FinishedAnswer {
    answer: Box<Generator>,
    last_token: Option<Instant>,
}

/// The sampled tokens of a step, in the order of emission, and what emitting them showed.
#[derive(Debug, Default)]
pub(super) struct PendingOutput {
    tokens: Vec<PendingToken>,
    /// When their step was collected.
    collected: Option<Instant>,
    /// Sequences that a stop string ended. They may be in the step that runs.
    finished: Vec<SeqKey>,
    /// Requests that end with an error.
    failed: Vec<(RequestId, Error)>,
}

impl PendingOutput {
    /// Adds a token of the step that was collected at `now`.
    pub(super) fn push(&mut self, key: SeqKey, sample: Sample, now: Instant) {
        self.tokens.push(PendingToken { key, sample, finished: None });
        self.collected = Some(now);
    }

    /// Keeps the answer of a sequence that is complete until its tokens are emitted.
    pub(super) fn keep_answer(
        &mut self,
        key: SeqKey,
        answer: Box<Generator>,
        last_token: Option<Instant>,
    ) {
        if let Some(token) = self.tokens.iter_mut().rev().find(|token| token.key == key) {
            token.finished = Some(FinishedAnswer { answer, last_token });
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The request of each token.
    pub(super) fn requests(&self) -> impl Iterator<Item = RequestId> {
        self.tokens.iter().map(|token| token.key.request)
    }

    /// Drops the tokens of a request.
    pub(super) fn forget(&mut self, request: RequestId) {
        self.tokens.retain(|token| token.key.request != request);
    }

    /// Whether a stop string ended a sequence that is still in the queue.
    pub(super) fn is_finished(&self, key: SeqKey) -> bool {
        self.finished.contains(&key)
    }

    /// Emits the pending tokens; finished sequences are only marked.
    pub(super) fn emit(&mut self, queue: &mut Queue, stats: &Counters, path: &Path) {
        let Some(now) = self.collected.take() else { return };
        for tokens in self.tokens.chunk_by_mut(|a, b| a.key == b.key) {
            let key = tokens[0].key;
            // A kept answer is with the last of its tokens, and is needed for all.
            let mut kept = tokens.last_mut().and_then(|token| token.finished.take());
            let is_gone = kept.is_some();
            let (answer, last_token, request) = match &mut kept {
                Some(FinishedAnswer { answer, last_token }) => {
                    let Some(request) = queue.request(key.request) else { continue };
                    (answer, last_token, request)
                }
                None => {
                    let Some((seq, request)) = queue.find(key) else { continue };
                    let Stage::Answer(answer) = &mut seq.stage else { continue };
                    (answer, &mut seq.last_token, request)
                }
            };
            let mut is_finished = false;
            for token in tokens {
                if is_finished {
                    break;
                }
                match answer.detokenize(std::mem::take(&mut token.sample)) {
                    Ok(output) => {
                        let idx = key.answer;
                        is_finished =
                            request.emit_output(idx, answer, output, last_token, now, stats);
                    }
                    Err(error) => {
                        self.failed.push((key.request, error.of_model(path)));
                        is_finished = true;
                    }
                }
            }
            if is_finished && !is_gone {
                self.finished.push(key);
            }
        }
        self.tokens.clear();
    }

    /// Takes the sequences that emission finished.
    pub(super) fn take_finished(&mut self) -> std::vec::Drain<'_, SeqKey> {
        self.finished.drain(..)
    }

    /// Takes the requests that emission failed.
    pub(super) fn take_failed(&mut self) -> Vec<(RequestId, Error)> {
        std::mem::take(&mut self.failed)
    }
}
