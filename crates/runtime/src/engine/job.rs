//! Requests as the engine's thread holds them: the job, and the sequences that are run for it.

use super::head::{Hidden, Track};
use super::lookup::Lookup;
use super::request::{AnswerToken, EngineEvent, PromptLogprob, Sink};
use super::schedule::Wanted;
use super::stats::Counters;
use crate::Error;
use crate::checkpoint::Pooling;
use crate::generate::FinishReason;
use crate::generate::answer::{Answer, Chosen};
use crate::generate::embedding::Pooler;
use crate::run::{Prompt, SeqId};
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

/// What is to be made of a prompt.
pub(super) enum Work {
    /// Answers.
    Answers {
        answers: Vec<Answer>,
        /// How many likely tokens are wanted at each position of the prompt.
        prompt_logprobs: Option<usize>,
        reuses_prefix: bool,
    },
    /// One vector.
    Embedding(Pooler),
}

/// The place of a run in every queue: by priority, then arrival, then answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    pub(super) priority: i32,
    pub(super) job: u64,
    pub(super) index: usize,
}

/// A request that is not complete.
pub(super) struct Job {
    sink: Sink,
    cancelled: Arc<AtomicBool>,
    /// Answers that are not complete; an embedding counts as one.
    n_open: usize,
    arrived: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
}

impl Job {
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Whether all its answers are complete.
    pub(super) fn is_done(&self) -> bool {
        self.n_open == 0
    }

    pub(super) fn emit(&mut self, event: EngineEvent) {
        if !self.is_cancelled() {
            (self.sink)(event);
        }
    }

    /// The time since its first step began.
    pub(super) fn prefill(&self, now: Instant) -> Duration {
        self.started.map_or(Duration::ZERO, |started| now - started)
    }

    /// Its first step begins.
    pub(super) fn start(&mut self, now: Instant, stats: &Counters) {
        if self.started.is_none() {
            self.started = Some(now);
            stats.update(|stats| stats.queue.record(now - self.arrived));
        }
    }

    /// A token of answer `index` was generated. It is counted before its event is sent.
    pub(super) fn token(
        &mut self,
        index: usize,
        token: Chosen,
        last: &mut Option<Instant>,
        (now, stats): (Instant, &Counters),
    ) {
        let is_first = self.first_token.is_none();
        self.first_token.get_or_insert(now);
        let last = last.replace(now);
        stats.update(|stats| {
            stats.generated_tokens += 1;
            if is_first {
                stats.ttft.record(now - self.arrived);
                stats.prefill.record(now - self.started.unwrap_or(self.arrived));
            }
            if let Some(last) = last {
                stats.inter_token.record(now - last);
            }
        });
        let Chosen { id, text, logprob, top_logprobs } = token;
        self.emit(EngineEvent::Token(AnswerToken { index, id, text, logprob, top_logprobs }));
    }

    /// An answer is complete.
    pub(super) fn finish(
        &mut self,
        (index, answer, reason): (usize, &mut Answer, FinishReason),
        (now, stats): (Instant, &Counters),
    ) {
        self.n_open -= 1;
        stats.update(|stats| {
            match reason {
                FinishReason::Stop => stats.finished.stop += 1,
                FinishReason::Length => stats.finished.length += 1,
                FinishReason::Cancelled => stats.finished.cancelled += 1,
            }
            if self.is_done() {
                stats.e2e.record(now - self.arrived);
                stats.decode.record(now - self.first_token.unwrap_or(now));
            }
        });
        let tail = answer.tail(reason);
        let stop = answer.stopped_by().cloned();
        self.emit(EngineEvent::Finished { index, reason, tail, stop });
    }

    /// Its embedding is complete.
    pub(super) fn embedded(
        &mut self,
        values: Vec<f32>,
        cached_tokens: usize,
        (now, stats): (Instant, &Counters),
    ) {
        self.n_open -= 1;
        stats.update(|stats| {
            stats.finished.embedding += 1;
            stats.prefill.record(now - self.started.unwrap_or(self.arrived));
            stats.e2e.record(now - self.arrived);
        });
        self.emit(EngineEvent::Embedding { values, cached_tokens });
    }

    /// It ends with an error, unless it has ended already.
    pub(super) fn fail(&mut self, error: Error, stats: &Counters) {
        if !self.is_done() {
            stats.update(|stats| stats.finished.failed += self.n_open as u64);
            self.emit(EngineEvent::Failed(error));
        }
    }

    /// Nothing waits for it any longer.
    pub(super) fn abandon(&self, stats: &Counters) {
        stats.update(|stats| stats.finished.cancelled += self.n_open as u64);
    }
}

/// What a run is about.
#[derive(Debug)]
pub(super) enum Stage {
    /// The prompt is run once for all answers.
    Prompt { answers: Vec<Answer>, logprobs: Vec<PromptLogprob> },
    /// One answer, whose prompt was run at least once.
    Answer(Box<Answer>),
    /// The prompt is run for its hidden states.
    Embedding(Pooler),
}

/// What drafts tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DraftSource {
    /// What the text has said before.
    Lookup,
    /// A draft model.
    Model,
    /// The model's own layer for multi-token prediction.
    Head,
}

/// A sequence that is run, or waits to be.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) key: Key,
    pub(super) prompt: Arc<Prompt>,
    pub(super) stage: Stage,
    /// How many likely tokens are wanted at each position of the prompt.
    pub(super) prompt_logprobs: Option<usize>,
    /// Whether it may begin with what the prefix cache has.
    pub(super) reuses_prefix: bool,
    /// Its pages; none while it waits.
    pub(super) seq: Option<SeqId>,
    /// Tokens of its sequence that were run.
    pub(super) done: usize,
    /// Tokens that the prefix cache had.
    pub(super) cached: usize,
    /// The tokens of its next step.
    pub(super) chunk: Vec<u32>,
    /// Of these, draft tokens at the end.
    pub(super) n_drafts: usize,
    /// What drafted them.
    pub(super) drafted_by: DraftSource,
    /// What was drafted of its next tokens by the model itself, or by a draft model.
    pub(super) guesses: Vec<u32>,
    pub(super) guesses_by: DraftSource,
    pub(super) lookup: Lookup,
    pub(super) track: Track,
    /// Of the step that was just read, the output row after which the next token goes.
    pub(super) last_row: Option<usize>,
    pub(super) hidden: Hidden,
    pub(super) last_token: Option<Instant>,
    /// What the last mask of its grammar took, and the step in which it had a turn for a slow one.
    pub(super) mask_time: Duration,
    pub(super) last_turn: u64,
    /// Tokens ahead of which no step is launched, as a shortlist did not decide.
    pub(super) n_wary: u32,
    /// It is not in the step that is planned, because of masks that take long, or because a prompt needs
    /// all of the step.
    pub(super) sits_out: bool,
}

impl Run {
    /// A run of a prompt of which nothing was run yet.
    pub(super) fn new(key: Key, prompt: Arc<Prompt>, stage: Stage) -> Self {
        Self {
            key,
            prompt,
            stage,
            prompt_logprobs: None,
            reuses_prefix: true,
            seq: None,
            done: 0,
            cached: 0,
            chunk: Vec::new(),
            n_drafts: 0,
            drafted_by: DraftSource::Lookup,
            guesses: Vec::new(),
            guesses_by: DraftSource::Lookup,
            lookup: Lookup::default(),
            track: Track::default(),
            last_row: None,
            hidden: Hidden::default(),
            last_token: None,
            mask_time: Duration::ZERO,
            last_turn: 0,
            n_wary: 0,
            sits_out: false,
        }
    }

    /// Answers that it is for.
    pub(super) fn n_answers(&self) -> usize {
        match &self.stage {
            Stage::Prompt { answers, .. } => answers.len(),
            Stage::Answer(_) | Stage::Embedding(_) => 1,
        }
    }

    /// The tokens that were generated.
    pub(super) fn generated(&self) -> &[u32] {
        match &self.stage {
            Stage::Prompt { .. } | Stage::Embedding(_) => &[],
            Stage::Answer(answer) => answer.ids(),
        }
    }

    /// Tokens that may still be generated.
    pub(super) fn n_wanted(&self) -> usize {
        match &self.stage {
            Stage::Prompt { .. } | Stage::Embedding(_) => 0,
            Stage::Answer(answer) => answer.remaining(),
        }
    }

    /// Tokens that are known: the prompt's and those that were generated.
    pub(super) fn n_known(&self) -> usize {
        self.prompt.len() + self.generated().len()
    }

    /// Whether it stands for all that its request wants.
    pub(super) fn is_whole_request(&self) -> bool {
        !matches!(self.stage, Stage::Answer(_))
    }

    /// Of its prompt, the rows whose output is wanted.
    pub(super) fn prompt_rows(&self) -> Wanted {
        match &self.stage {
            Stage::Prompt { .. } if self.prompt_logprobs.is_some() => Wanted::All,
            Stage::Prompt { .. } => Wanted::Last,
            Stage::Answer(_) => Wanted::None,
            Stage::Embedding(pooler) => match pooler.pooling() {
                Pooling::Last => Wanted::Last,
                Pooling::Mean => Wanted::All,
                Pooling::Cls => Wanted::First,
            },
        }
    }

    /// Frees its pages; it will be recomputed from the beginning of its prompt.
    pub(super) fn rewind(&mut self) {
        self.seq = None;
        (self.done, self.cached) = (0, 0);
        match &mut self.stage {
            Stage::Prompt { logprobs, .. } => logprobs.clear(),
            Stage::Embedding(pooler) => pooler.clear(),
            Stage::Answer(_) => {}
        }
    }

    /// Whether it is at its prompt.
    pub(super) fn in_prompt(&self) -> bool {
        self.done < self.prompt.len()
    }
}

impl Submission {
    /// Reports that it will not be run.
    pub(super) fn refuse(self, error: Error) {
        let Self { mut sink, cancelled, .. } = self;
        if !cancelled.load(Ordering::Relaxed) {
            sink(EngineEvent::Failed(error));
        }
    }

    /// The job and the run that begins it.
    pub(super) fn split(self, id: u64) -> (Job, Run) {
        let Self { prompt, priority, work, sink, cancelled, arrived } = self;
        let (stage, prompt_logprobs, reuses_prefix) = match work {
            Work::Answers { answers, prompt_logprobs, reuses_prefix } => {
                let stage = Stage::Prompt { answers, logprobs: Vec::new() };
                (stage, prompt_logprobs, reuses_prefix)
            }
            Work::Embedding(pooler) => (Stage::Embedding(pooler), None, true),
        };
        let key = Key { priority, job: id, index: 0 };
        let run = Run { prompt_logprobs, reuses_prefix, ..Run::new(key, prompt.into(), stage) };
        let job = Job {
            sink,
            cancelled,
            n_open: run.n_answers(),
            arrived,
            started: None,
            first_token: None,
        };
        (job, run)
    }
}
