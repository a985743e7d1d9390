//! A request on the engine's thread: its sink, what is open of it, and its times.

use super::request::{AnswerToken, EngineEvent, Sink};
use super::sequence::{RequestId, SeqKey, Sequence, Stage};
use super::stats::Counters;
use crate::Error;
use crate::generate::FinishReason;
use crate::generate::embedding::Pooler;
use crate::generate::generator::{Generator, Output, OutputToken};
use crate::run::Prompt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A request on its way to the engine's thread.
pub(super) struct Submission {
    pub(super) prompt: Prompt,
    pub(super) priority: i32,
    pub(super) work: Work,
    pub(super) sink: Sink,
    pub(super) cancelled: Arc<AtomicBool>,
    pub(super) arrived: Instant,
}

/// The result that a request asks for.
pub(super) enum Work {
    Answers {
        answers: Vec<Generator>,
        /// The number of most likely tokens to report at each prompt position.
        prompt_logprobs: Option<usize>,
        reuses_prefix: bool,
    },
    Embedding(Pooler),
}

impl Submission {
    /// Fails the request, which was not queued.
    pub(super) fn refuse(self, error: Error) {
        let Self { mut sink, cancelled, .. } = self;
        if !cancelled.load(Ordering::Relaxed) {
            sink(EngineEvent::Failed(error));
        }
    }

    /// The request under the number `id`, and its first sequence.
    pub(super) fn into_request(self, id: RequestId) -> (ActiveRequest, Sequence) {
        let Self { prompt, priority, work, sink, cancelled, arrived } = self;
        let key = SeqKey { priority, request: id, answer: 0 };
        let prompt = Arc::new(prompt);
        let seq = match work {
            Work::Answers { answers, prompt_logprobs, reuses_prefix } => {
                let stage = Stage::Prompt { answers, logprobs: Vec::new() };
                Sequence { prompt_logprobs, reuses_prefix, ..Sequence::new(key, prompt, stage) }
            }
            Work::Embedding(pooler) => Sequence::new(key, prompt, Stage::Embedding(pooler)),
        };
        let request = ActiveRequest {
            sink,
            cancelled,
            n_open: seq.n_answers(),
            arrived,
            started: None,
            first_token: None,
        };
        (request, seq)
    }
}

/// A request that is not complete.
///
/// Every event is counted in the statistics before it is sent.
pub(super) struct ActiveRequest {
    sink: Sink,
    cancelled: Arc<AtomicBool>,
    /// Answers that are not complete; an embedding counts as one.
    n_open: usize,
    arrived: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
}

impl ActiveRequest {
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Whether all its answers are complete.
    pub(super) fn is_complete(&self) -> bool {
        self.n_open == 0
    }

    /// Sends an event, unless the request is cancelled.
    pub(super) fn emit(&mut self, event: EngineEvent) {
        if !self.is_cancelled() {
            (self.sink)(event);
        }
    }

    /// The time since its first step began.
    pub(super) fn prefill_time(&self, now: Instant) -> Duration {
        self.started.map_or(Duration::ZERO, |started| now - started)
    }

    /// Records the beginning of its first step; later calls do nothing.
    pub(super) fn start(&mut self, now: Instant, stats: &Counters) {
        if self.started.is_none() {
            self.started = Some(now);
            stats.update(|stats| stats.queue.record(now - self.arrived));
        }
    }

    /// Emits a sampled token of an answer and, if that ends the answer, its end. Returns whether it
    /// has ended.
    pub(super) fn emit_output(
        &mut self,
        answer_idx: usize,
        answer: &mut Generator,
        output: Output,
        last_token: &mut Option<Instant>,
        now: Instant,
        stats: &Counters,
    ) -> bool {
        if let Some(token) = output.token {
            self.emit_token(answer_idx, token, last_token.replace(now), now, stats);
        }
        if let Some(reason) = output.finished {
            self.emit_finished(answer_idx, answer, reason, now, stats);
        }
        output.finished.is_some()
    }

    fn emit_token(
        &mut self,
        answer_idx: usize,
        token: OutputToken,
        previous: Option<Instant>,
        now: Instant,
        stats: &Counters,
    ) {
        let is_first = self.first_token.is_none();
        self.first_token.get_or_insert(now);
        stats.update(|stats| {
            stats.generated_tokens += 1;
            if is_first {
                stats.ttft.record(now - self.arrived);
                stats.prefill.record(now - self.started.unwrap_or(self.arrived));
            }
            if let Some(previous) = previous {
                stats.inter_token.record(now - previous);
            }
        });
        let OutputToken { id, text, logprob, top_logprobs } = token;
        let token = AnswerToken { index: answer_idx, id, text, logprob, top_logprobs };
        self.emit(EngineEvent::Token(token));
    }

    fn emit_finished(
        &mut self,
        answer_idx: usize,
        answer: &mut Generator,
        reason: FinishReason,
        now: Instant,
        stats: &Counters,
    ) {
        self.n_open -= 1;
        stats.update(|stats| {
            match reason {
                FinishReason::Stop => stats.finished.stop += 1,
                FinishReason::Length => stats.finished.length += 1,
                FinishReason::Cancelled => stats.finished.cancelled += 1,
            }
            if self.is_complete() {
                stats.e2e.record(now - self.arrived);
                stats.decode.record(now - self.first_token.unwrap_or(now));
            }
        });
        let tail = answer.tail(reason);
        let stop = answer.stopped_by().cloned();
        self.emit(EngineEvent::Finished { index: answer_idx, reason, tail, stop });
    }

    /// Emits its embedding, which completes it.
    pub(super) fn emit_embedding(
        &mut self,
        values: Vec<f32>,
        cached_tokens: usize,
        now: Instant,
        stats: &Counters,
    ) {
        self.n_open -= 1;
        stats.update(|stats| {
            stats.finished.embedding += 1;
            stats.prefill.record(now - self.started.unwrap_or(self.arrived));
            stats.e2e.record(now - self.arrived);
        });
        self.emit(EngineEvent::Embedding { values, cached_tokens });
    }

    /// Ends it with an error, unless it is complete.
    pub(super) fn fail(&mut self, error: Error, stats: &Counters) {
        if !self.is_complete() {
            stats.update(|stats| stats.finished.failed += self.n_open as u64);
            self.emit(EngineEvent::Failed(error));
        }
    }

    /// Counts its open answers as cancelled.
    pub(super) fn cancel(&self, stats: &Counters) {
        stats.update(|stats| stats.finished.cancelled += self.n_open as u64);
    }
}
