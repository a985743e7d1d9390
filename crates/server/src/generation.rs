//! From prompts to answers: requests are submitted to the engine, their events come back in one
//! stream, and dropping it cancels what is not finished.

use crate::error::ApiError;
use crate::registry::ModelLease;
use crate::state::AppState;
use realizar_runtime::engine::{AnswerToken, EngineEvent, PromptLogprob, Request, Ticket};
use realizar_runtime::{FinishReason, GenerateParams, TopLogprob};
use serde::Serialize;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
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
    /// A stop text that ends an answer is a part of it.
    pub(crate) include_stop: bool,
}

/// Answers on their way. Answer `i` of prompt `p` has the number `p * n + i`.
pub(crate) struct Generation {
    events: UnboundedReceiver<(usize, EngineEvent)>,
    tickets: Vec<Ticket>,
    /// Kept until the answers are complete.
    model: ModelLease,
    n: usize,
    unfinished: usize,
    include_stop: bool,
    deadline: Option<(Instant, Duration)>,
    usage: Usage,
}

/// What happens to the answers.
#[derive(Debug)]
pub(crate) enum Progress {
    /// A prompt was run.
    Prompt { prompt: usize, logprobs: Vec<PromptLogprob> },
    /// A token was generated; its index is the answer's number.
    Token(AnswerToken),
    /// An answer is complete.
    Finished { answer: usize, reason: Finish, tail: String, stop: Option<String> },
}

/// Why an answer is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Finish {
    Stop,
    Length,
    ToolCalls,
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) completion_tokens: usize,
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
    pub(crate) tokens: Vec<TokenLogprob>,
    pub(crate) reason: Finish,
    pub(crate) stop: Option<String>,
}

/// All answers of a request.
#[derive(Debug)]
pub(crate) struct Answers {
    /// Of each prompt, how likely its tokens were, where that was asked for.
    pub(crate) prompts: Vec<Vec<PromptLogprob>>,
    pub(crate) answers: Vec<Answer>,
    pub(crate) usage: Usage,
}

impl Job {
    /// Hands the prompts to the engine. If it does not take one of them, it runs none.
    pub(crate) fn start(self, state: &AppState) -> Result<Generation, ApiError> {
        let (sender, events) = unbounded_channel();
        let timeout = state.config().request_timeout;
        let (n_prompts, n) = (self.prompts.len(), self.n);
        let prompt_tokens = self.prompts.iter().map(Vec::len).sum();
        let mut tickets = Vec::with_capacity(n_prompts);
        for (p, prompt) in self.prompts.into_iter().enumerate() {
            let request = Request {
                prompt,
                params: self.params.clone(),
                n,
                priority: self.priority,
                prompt_logprobs: self.prompt_logprobs,
            };
            let sender = sender.clone();
            // Nobody listens to a request that was dropped.
            let sink = Box::new(move |event| drop(sender.send((p, event))));
            tickets.push(self.model.engine.submit(request, sink)?);
        }
        Ok(Generation {
            events,
            tickets,
            model: self.model,
            n,
            unfinished: n_prompts * n,
            include_stop: self.include_stop,
            deadline: timeout.and_then(|limit| Some((Instant::now().checked_add(limit)?, limit))),
            usage: Usage { prompt_tokens, ..Usage::default() },
        })
    }
}

impl Generation {
    /// The next event; `None` once all answers are complete. After an error nothing comes any more.
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
            Some((prompt, event)) => self.progress(prompt, event),
            None => Err(ApiError::unavailable("the engine ended before the answer was complete")),
        });
        if progress.is_err() {
            self.unfinished = 0;
            self.tickets.clear();
        }
        Some(progress)
    }

    fn progress(&mut self, prompt: usize, event: EngineEvent) -> Result<Progress, ApiError> {
        match event {
            EngineEvent::Prompt { cached_tokens, logprobs } => {
                self.usage.cached_tokens += cached_tokens;
                Ok(Progress::Prompt { prompt, logprobs })
            }
            EngineEvent::Token(token) => {
                self.usage.completion_tokens += 1;
                Ok(Progress::Token(AnswerToken { index: prompt * self.n + token.index, ..token }))
            }
            EngineEvent::Finished { index, reason, mut tail, stop } => {
                self.unfinished -= 1;
                let reason = match reason {
                    FinishReason::Stop => Finish::Stop,
                    FinishReason::Length => Finish::Length,
                    // The client is still there, so it was the server.
                    FinishReason::Cancelled => {
                        return Err(ApiError::unavailable(self.model.why_ended()));
                    }
                };
                if self.include_stop {
                    tail.extend(stop.as_deref());
                }
                Ok(Progress::Finished { answer: prompt * self.n + index, reason, tail, stop })
            }
            EngineEvent::Embedding { .. } => {
                Err(ApiError::internal("an embedding came where text was asked for"))
            }
            EngineEvent::Failed(realizar_runtime::Error::Closed) => {
                Err(ApiError::unavailable(self.model.why_ended()))
            }
            EngineEvent::Failed(error) => Err(error.into()),
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
                tokens: Vec::new(),
                reason: Finish::Stop,
                stop: None,
            })
            .collect();
        while let Some(progress) = self.next().await {
            match progress? {
                Progress::Prompt { prompt, logprobs } => prompts[prompt] = logprobs,
                Progress::Token(token) => {
                    let answer = &mut answers[token.index];
                    answer.text.push_str(&token.text);
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
