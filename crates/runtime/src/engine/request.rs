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
    /// The prompt; at least one row. Prompts with embeddings disable drafting.
    pub prompt: Prompt,
    /// The parameters of each answer. Answer `i` samples with the seed plus `i`.
    pub params: GenerateParams,
    /// The number of answers, which share the prompt's pages.
    pub n: usize,
    /// The priority; lower values run first.
    pub priority: i32,
    /// The number of most likely tokens to report at each prompt position.
    pub prompt_logprobs: Option<usize>,
    /// Whether the prompt is looked up in the prefix cache. Answers do not depend on it.
    pub reuses_prefix: bool,
}

impl Request {
    /// A request for one answer to `prompt`.
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

/// A request for the embedding of a text, by a model that was loaded for embeddings.
#[derive(Debug, Clone)]
pub struct EmbeddingRequest {
    /// The text; at least one row.
    pub prompt: Prompt,
    /// The parameters of the embedding.
    pub params: EmbedParams,
    /// The priority; lower values run first.
    pub priority: i32,
}

impl EmbeddingRequest {
    /// A request for the embedding of `prompt`.
    pub fn new(prompt: impl Into<Prompt>, params: EmbedParams) -> Self {
        Self { prompt: prompt.into(), params, priority: 0 }
    }
}

/// An event of a request. The last one is [`EngineEvent::Finished`] of the last answer,
/// [`EngineEvent::Embedding`], or [`EngineEvent::Failed`].
#[derive(Debug)]
#[non_exhaustive]
pub enum EngineEvent {
    /// The prefill is complete.
    Prompt {
        /// The number of prompt tokens from the prefix cache.
        cached_tokens: usize,
        /// The time from the start of its first step to the end of its last one.
        prefill: Duration,
        /// The log-probability of each prompt token but the first, if requested.
        logprobs: Vec<PromptLogprob>,
    },
    /// An answer got a token.
    Token(AnswerToken),
    /// An answer is complete.
    Finished {
        /// The index of the answer.
        index: usize,
        /// Why it ended.
        reason: FinishReason,
        /// The rest of its text, which was held back as the possible beginning of a stop text or as an
        /// incomplete character.
        tail: String,
        /// The stop text or stop token that ended it.
        stop: Option<StopCause>,
    },
    /// The embedding; the request is complete.
    Embedding {
        /// The elements of the vector.
        values: Vec<f32>,
        /// The number of prompt tokens from the prefix cache.
        cached_tokens: usize,
    },
    /// The request ended with an error.
    Failed(Error),
}

impl EngineEvent {
    /// The text that the event adds to its answer.
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
    /// The index of its answer.
    pub index: usize,
    /// The token id.
    pub id: u32,
    /// The text that it completed: empty while a character or a possible stop text is incomplete, and
    /// then that of several tokens.
    pub text: String,
    /// Its log-probability, if requested, as [`TopLogprob::logprob`].
    pub logprob: Option<f32>,
    /// The most likely tokens, if requested, best first.
    pub top_logprobs: Vec<TopLogprob>,
}

/// The log-probability of a prompt token, given those before it.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptLogprob {
    /// The token id.
    pub id: u32,
    /// Its log-probability.
    pub logprob: f32,
    /// Its rank in the vocabulary by log-probability, from 1. Ties share the highest number of their
    /// ranks.
    pub rank: usize,
    /// The most likely tokens at its position, best first.
    pub top_logprobs: Vec<TopLogprob>,
}

/// Receives the events of a request. It is called on the engine's thread and must not block. If it
/// panics, the requests of the step end with [`EngineEvent::Failed`].
pub type Sink = Box<dyn FnMut(EngineEvent) + Send>;

/// A handle on an accepted request. Dropping it cancels the request: its pages are freed at the next
/// step, and it gets no further events.
#[derive(Debug)]
pub struct Ticket {
    pub(super) cancelled: Arc<AtomicBool>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

/// Why a request was rejected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The queue is full.
    #[error("the queue is full: {waiting} requests are waiting")]
    QueueFull {
        /// The number of waiting requests.
        waiting: usize,
        /// The estimated time until there is room.
        retry_after: Duration,
    },
    /// The engine is shutting down, or has ended.
    #[error("the engine accepts no more requests")]
    Closed,
    /// The request is invalid.
    #[error(transparent)]
    Invalid(#[from] Error),
}
