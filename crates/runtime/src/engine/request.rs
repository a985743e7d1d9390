//! Requests to the engine, and the events that it emits.

use crate::Error;
use crate::generate::embedding::EmbedParams;
use crate::generate::{FinishReason, GenerateParams, StopCause, TopLogprob};
use crate::run::Prompt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A prompt and how to continue from it.
#[derive(Debug, Clone)]
pub struct Request {
    /// The prompt; at least one row. No tokens are drafted for one with embeddings.
    pub prompt: Prompt,
    /// How each answer is generated. Answer `i` samples with the seed plus `i`.
    pub params: GenerateParams,
    /// Answers to the one prompt, whose pages they share.
    pub n: usize,
    /// Requests with a lower value are run first.
    pub priority: i32,
    /// How many of the most likely tokens to report at each position of the prompt.
    pub prompt_logprobs: Option<usize>,
    /// Whether the prompt begins with what the prefix cache has of it. Answers are the same in either
    /// case.
    pub reuses_prefix: bool,
}

impl Request {
    /// One answer to `prompt`.
    pub fn new(prompt: impl Into<Prompt>, params: GenerateParams) -> Self {
        Self {
            prompt: prompt.into(),
            params,
            n: 1,
            priority: 0,
            prompt_logprobs: None,
            reuses_prefix: true,
        }
    }
}

/// A text whose embedding is wanted, of a model that was loaded for embeddings.
#[derive(Debug, Clone)]
pub struct EmbeddingRequest {
    /// The text; at least one row.
    pub prompt: Prompt,
    /// What the embedding is to be like.
    pub params: EmbedParams,
    /// Requests with a lower value are run first.
    pub priority: i32,
}

impl EmbeddingRequest {
    /// The embedding of `prompt`.
    pub fn new(prompt: impl Into<Prompt>, params: EmbedParams) -> Self {
        Self { prompt: prompt.into(), params, priority: 0 }
    }
}

/// What happens to a request. The last event is [`EngineEvent::Finished`] of its last answer,
/// [`EngineEvent::Embedding`], or [`EngineEvent::Failed`].
#[derive(Debug)]
#[non_exhaustive]
pub enum EngineEvent {
    /// The prompt was run.
    Prompt {
        /// Tokens whose keys and values were in the cache.
        cached_tokens: usize,
        /// From its first step to the end of its last one.
        prefill: Duration,
        /// How likely each token of the prompt was, when that was requested: of all but the first.
        logprobs: Vec<PromptLogprob>,
    },
    /// A token of one answer was generated.
    Token(AnswerToken),
    /// An answer is complete.
    Finished {
        /// The answer.
        index: usize,
        /// Why it ended.
        reason: FinishReason,
        /// The end of its text that came with no token: it was held back as the possible beginning
        /// of a stop text or of a character.
        tail: String,
        /// What of the request ended it.
        stop: Option<StopCause>,
    },
    /// The embedding that was requested; nothing more will come.
    Embedding {
        /// Its elements.
        values: Vec<f32>,
        /// Tokens whose keys and values were in the cache.
        cached_tokens: usize,
    },
    /// The request ended with an error; nothing more will come.
    Failed(Error),
}

impl EngineEvent {
    /// The text that it adds to its answer: a token's, or the end of an answer that came with no token.
    pub fn text(&self) -> &str {
        match self {
            Self::Token(token) => &token.text,
            Self::Finished { tail, .. } => tail,
            Self::Prompt { .. } | Self::Embedding { .. } | Self::Failed(_) => "",
        }
    }
}

/// A generated token.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerToken {
    /// The answer that it belongs to.
    pub index: usize,
    /// The token.
    pub id: u32,
    /// The text that it made certain, which may be none, or that of several.
    pub text: String,
    /// Its log-probability, when that was requested, as [`TopLogprob::logprob`].
    pub logprob: Option<f32>,
    /// The most likely tokens, when they were requested, best first.
    pub top_logprobs: Vec<TopLogprob>,
}

/// How likely a token of the prompt was after those before it.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptLogprob {
    /// The token.
    pub id: u32,
    /// Its log-probability.
    pub logprob: f32,
    /// Its place among all tokens by their log-probabilities, from 1. Equally likely tokens all
    /// have the last of their places.
    pub rank: usize,
    /// The most likely tokens at its place, best first.
    pub top_logprobs: Vec<TopLogprob>,
}

/// Where a request's events go. It is called by the engine's thread and must not wait. If it panics,
/// the requests of the step end with [`EngineEvent::Failed`].
pub type Sink = Box<dyn FnMut(EngineEvent) + Send>;

/// A request that was taken. Dropping the ticket cancels what is not finished: its pages are free
/// at the next step, and no further event comes.
#[derive(Debug)]
pub struct Ticket {
    pub(super) cancelled: Arc<AtomicBool>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

/// Why a request was not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// As many requests wait as are allowed to.
    #[error("the queue is full: {waiting} requests are waiting")]
    QueueFull {
        /// Waiting requests.
        waiting: usize,
        /// When there may be room again.
        retry_after: Duration,
    },
    /// The engine is shutting down, or has ended.
    #[error("the engine accepts no more requests")]
    Closed,
    /// The request cannot be met as it is.
    #[error(transparent)]
    Invalid(#[from] Error),
}
