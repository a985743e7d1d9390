//! From prompts to answers: requests are submitted to the engine, their events come back in one
//! stream, and dropping it cancels what is not finished.
//!
//! The engine's thread never waits for a client: it adds events to a queue, and counts their bytes.
//! A stream whose queue has grown beyond its bound gets no more events, and its requests are cancelled
//! from there, because a connection that cannot be written to asks for no events.

use crate::error::ApiError;
use crate::record::{self, Recorder, RequestRecord};
use crate::registry::ModelLease;
use crate::registry::slots::Seats;
use crate::state::AppState;
use realizar_runtime::engine::{AnswerToken, EngineEvent, PromptLogprob, Request, Ticket};
use realizar_runtime::{Error, FinishReason, GenerateParams, StopCause, TopLogprob};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

/// What is to be generated.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) model: ModelLease,
    pub(crate) prompts: Vec<Vec<u32>>,
    pub(crate) params: GenerateParams,
    /// Answers to each prompt.
    pub(crate) n: usize,
    pub(crate) priority: i32,
    pub(crate) prompt_logprobs: Option<usize>,
    /// A stop text or a stop token that ends an answer is a part of its text.
    pub(crate) include_stop: bool,
    /// Whether prompts begin with what the prefix cache has of them.
    pub(crate) reuses_prefix: bool,
}

/// Answers on their way. Answer `i` of prompt `p` has the number `p * n + i`.
pub(crate) struct Generation {
    events: UnboundedReceiver<(usize, EngineEvent)>,
    backlog: Arc<Backlog>,
    /// Kept until the answers are complete.
    model: ModelLease,
    n: usize,
    unfinished: usize,
    include_stop: bool,
    shown_tokens: Vec<u32>,
    deadline: Option<(Instant, Duration)>,
    usage: Usage,
    recorder: Option<Recorder>,
}

/// Events waiting for the listener, and the tickets of the requests that they come from.
#[derive(Debug)]
struct Backlog {
    bytes: AtomicUsize,
    limit: AtomicUsize,
    overrun: AtomicBool,
    tickets: Mutex<Vec<Ticket>>,
    /// Of each prompt, the places of its answers.
    seats: Vec<Seats>,
}

/// What happens to the answers.
#[derive(Debug)]
pub(crate) enum Progress {
    /// A prompt was run.
    Prompt {
        prompt: usize,
        cached_tokens: usize,
        /// How long it took.
        prefill: Duration,
        /// The places of its answers.
        places: Vec<usize>,
        logprobs: Vec<PromptLogprob>,
    },
    /// A token was generated; its index is the answer's number.
    Token(AnswerToken),
    /// An answer is complete.
    Finished { answer: usize, reason: Finish, tail: String, stop: Option<StopCause> },
}

/// Why an answer is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Finish {
    Stop,
    Length,
    ToolCalls,
    /// As `ToolCalls`, told to a client that gave `functions`.
    FunctionCall,
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) completion_tokens: usize,
    /// Of these, how many were reasoning, where the answers of a conversation were read.
    pub(crate) reasoning_tokens: usize,
}

/// How likely a token was.
#[derive(Debug, Clone)]
pub(crate) struct TokenLogprob {
    pub(crate) id: u32,
    /// `None` of a prompt's first token.
    pub(crate) logprob: Option<f32>,
    pub(crate) top: Vec<TopLogprob>,
}

/// A complete answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) text: String,
    /// Where the text of each token ends in the text.
    pub(crate) ends: Vec<usize>,
    pub(crate) tokens: Vec<TokenLogprob>,
    pub(crate) reason: Finish,
    pub(crate) stop: Option<StopCause>,
}

/// All answers of a request.
#[derive(Debug)]
pub(crate) struct Answers {
    /// Of each prompt, how likely its tokens were, where that was requested.
    pub(crate) prompts: Vec<Vec<PromptLogprob>>,
    pub(crate) answers: Vec<Answer>,
    pub(crate) usage: Usage,
}

impl Job {
    /// Hands the prompts to the engine. If it does not take one of them, it runs none.
    pub(crate) fn start(mut self, state: &AppState) -> Result<Generation, ApiError> {
        let (sender, events) = unbounded_channel();
        let timeout = state.config().request_timeout;
        let (n_prompts, n) = (self.prompts.len(), self.n);
        let prompt_tokens = self.prompts.iter().map(Vec::len).sum();
        let shown_tokens = self.params.shown_tokens.clone();
        let constraint = self.params.constraint.take();
        let told = Arc::new(self.params.clone());
        self.params.constraint = constraint;
        let seats = |prompt: &Vec<u32>| Seats::new(self.model.slots(), prompt.len(), &told, n);
        let backlog = Arc::new(Backlog {
            bytes: AtomicUsize::new(0),
            limit: AtomicUsize::new(usize::MAX),
            overrun: AtomicBool::new(false),
            tickets: Mutex::new(Vec::with_capacity(n_prompts)),
            seats: self.prompts.iter().map(seats).collect(),
        });
        for (p, prompt) in self.prompts.into_iter().enumerate() {
            let request = Request {
                prompt: prompt.into(),
                params: self.params.clone(),
                n,
                priority: self.priority,
                prompt_logprobs: self.prompt_logprobs,
                reuses_prefix: self.reuses_prefix,
            };
            // The sink does not keep the tickets, whose drop is what ends it.
            let (sender, listener) = (sender.clone(), Arc::downgrade(&backlog));
            let sink = Box::new(move |event| {
                if let Some(backlog) = listener.upgrade() {
                    backlog.push(&sender, p, event);
                }
            });
            let ticket = self.model.engine.submit(request, sink)?;
            backlog.tickets.lock().unwrap_or_else(PoisonError::into_inner).push(ticket);
        }
        Ok(Generation {
            events,
            backlog,
            model: self.model,
            n,
            unfinished: n_prompts * n,
            include_stop: self.include_stop,
            shown_tokens,
            deadline: timeout.and_then(|limit| Some((Instant::now().checked_add(limit)?, limit))),
            usage: Usage { prompt_tokens, ..Usage::default() },
            recorder: record::current(),
        })
    }
}

impl Backlog {
    /// Adds an event, unless too much waits already. One event may be as large as it is.
    fn push(
        &self,
        sender: &UnboundedSender<(usize, EngineEvent)>,
        prompt: usize,
        event: EngineEvent,
    ) {
        if self.bytes.load(Ordering::Relaxed) > self.limit.load(Ordering::Relaxed) {
            self.overrun.store(true, Ordering::Relaxed);
            self.cancel();
            return;
        }
        self.seats[prompt].follow(&event);
        self.bytes.fetch_add(size(&event), Ordering::Relaxed);
        // Nobody listens to a request that was dropped.
        drop(sender.send((prompt, event)));
    }

    fn cancel(&self) {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.seats.iter().for_each(Seats::leave_all);
    }
}

/// The bytes of an event that waits.
fn size(event: &EngineEvent) -> usize {
    let more = match event {
        EngineEvent::Prompt { logprobs, .. } => {
            let tops = logprobs.iter().map(|token| size_of_val(&*token.top_logprobs));
            size_of_val(&**logprobs) + tops.sum::<usize>()
        }
        EngineEvent::Token(token) => token.text.len() + size_of_val(&*token.top_logprobs),
        EngineEvent::Finished { tail, stop, .. } => {
            let stop = match stop {
                Some(StopCause::Text(text)) => text.len(),
                Some(StopCause::Token(_)) | None => 0,
            };
            tail.len() + stop
        }
        _ => 0,
    };
    size_of::<EngineEvent>() + more
}

impl Generation {
    /// Sets how many bytes may wait for a slow reader; without this call there is no bound.
    pub(crate) fn bound_backlog(&self, bytes: usize) {
        self.backlog.limit.store(bytes, Ordering::Relaxed);
    }

    /// The next event; `None` once all answers are complete. After an error nothing more comes.
    pub(crate) async fn next(&mut self) -> Option<Result<Progress, ApiError>> {
        if self.unfinished == 0 {
            return None;
        }
        let next = match self.deadline {
            None => Ok(self.events.recv().await),
            Some((at, limit)) => tokio::time::timeout_at(at, self.events.recv())
                .await
                .map_err(|_| ApiError::timeout(limit)),
        };
        let progress = next.and_then(|event| match event {
            Some((prompt, event)) => {
                self.backlog.bytes.fetch_sub(size(&event), Ordering::Relaxed);
                self.progress(prompt, event)
            }
            None if self.backlog.overrun.load(Ordering::Relaxed) => {
                Err(ApiError::slow_reader(self.backlog.limit.load(Ordering::Relaxed)))
            }
            None => Err(ApiError::unavailable("the engine ended before the answer was complete")),
        });
        if let Err(error) = &progress {
            self.unfinished = 0;
            self.backlog.cancel();
            self.record(|record| record.error = Some(error.code().to_owned()));
        }
        Some(progress)
    }

    fn progress(&mut self, prompt: usize, event: EngineEvent) -> Result<Progress, ApiError> {
        match event {
            EngineEvent::Prompt { cached_tokens, prefill, logprobs } => {
                self.usage.cached_tokens += cached_tokens;
                let places = self.backlog.seats[prompt].places();
                Ok(Progress::Prompt { prompt, cached_tokens, prefill, places, logprobs })
            }
            EngineEvent::Token(token) => {
                if self.usage.completion_tokens == 0
                    && let Some(recorder) = &self.recorder
                {
                    recorder.first_token();
                }
                self.usage.completion_tokens += 1;
                Ok(Progress::Token(AnswerToken { index: prompt * self.n + token.index, ..token }))
            }
            EngineEvent::Finished { index, reason, mut tail, stop } => {
                self.unfinished -= 1;
                let reason = match reason {
                    FinishReason::Stop => Finish::Stop,
                    FinishReason::Length => Finish::Length,
                    // The client is still there, so it was the server.
                    FinishReason::Cancelled => return Err(self.model.failure(Error::Ended)),
                };
                self.record(|record| record.finish_reasons.push(reason.name()));
                match &stop {
                    Some(StopCause::Text(text)) if self.include_stop => tail.push_str(text),
                    Some(StopCause::Token(id)) if self.include_stop => {
                        let tokenizer = self.model.tokenizer();
                        if !tokenizer.is_special(*id) || self.shown_tokens.contains(id) {
                            tail.push_str(&tokenizer.token_text(*id)?);
                        }
                    }
                    _ => {}
                }
                Ok(Progress::Finished { answer: prompt * self.n + index, reason, tail, stop })
            }
            EngineEvent::Failed(error) => Err(self.model.failure(error)),
            _ => Err(ApiError::internal("expected generated text, found another event")),
        }
    }

    fn record(&self, change: impl FnOnce(&mut RequestRecord)) {
        if let Some(recorder) = &self.recorder {
            recorder.note(change);
        }
    }

    /// The tokens so far.
    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }

    /// Waits for all answers.
    pub(crate) async fn collect(mut self) -> Result<Answers, ApiError> {
        let mut prompts = vec![Vec::new(); self.unfinished / self.n.max(1)];
        let mut answers: Vec<Answer> = (0..self.unfinished)
            .map(|_| Answer {
                text: String::new(),
                ends: Vec::new(),
                tokens: Vec::new(),
                reason: Finish::Stop,
                stop: None,
            })
            .collect();
        while let Some(progress) = self.next().await {
            match progress? {
                Progress::Prompt { prompt, logprobs, .. } => prompts[prompt] = logprobs,
                Progress::Token(token) => {
                    let answer = &mut answers[token.index];
                    answer.text.push_str(&token.text);
                    answer.ends.push(answer.text.len());
                    answer.tokens.push(token.into());
                }
                Progress::Finished { answer, reason, tail, stop } => {
                    let answer = &mut answers[answer];
                    answer.text.push_str(&tail);
                    (answer.reason, answer.stop) = (reason, stop);
                }
            }
        }
        Ok(Answers { prompts, answers, usage: self.usage })
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        let Usage { prompt_tokens, cached_tokens, completion_tokens, .. } = self.usage;
        self.record(|record| {
            record.input_tokens = prompt_tokens;
            record.cached_tokens = cached_tokens;
            record.output_tokens = completion_tokens;
        });
    }
}

impl Finish {
    /// What answers call it.
    fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
            Self::FunctionCall => "function_call",
        }
    }
}

impl From<AnswerToken> for TokenLogprob {
    fn from(token: AnswerToken) -> Self {
        Self { id: token.id, logprob: token.logprob, top: token.top_logprobs }
    }
}

impl From<PromptLogprob> for TokenLogprob {
    fn from(token: PromptLogprob) -> Self {
        Self { id: token.id, logprob: Some(token.logprob), top: token.top_logprobs }
    }
}
