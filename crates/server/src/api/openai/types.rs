//! What the answers of chat and plain completions have in common.

use super::logprobs::PromptLogprobs;
use super::sampling::StreamUsage;
use crate::answer::generation::Usage;
use crate::answer::sse;
use crate::ids;
use axum::response::sse::Event;
use serde::Serialize;
use std::collections::VecDeque;

/// The fields that every answer and every chunk begins with.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) system_fingerprint: &'static str,
    pub(crate) service_tier: &'static str,
}

impl Head {
    /// The head of a new answer by `model`, named as the request names it.
    pub(crate) fn new(prefix: &str, object: &'static str, model: &str) -> Self {
        Self {
            id: ids::new(prefix),
            object,
            created: ids::unix_seconds(),
            model: model.to_owned(),
            system_fingerprint: concat!("realizar-", env!("CARGO_PKG_VERSION")),
            service_tier: "default",
        }
    }
}

/// What all chunks of a stream have in common.
#[derive(Debug)]
pub(crate) struct StreamHead {
    pub(crate) head: Head,
    pub(crate) usage: StreamUsage,
}

impl StreamHead {
    /// A chunk of one answer; `usage` includes it.
    pub(crate) fn chunk(&self, choice: impl Serialize, usage: Usage) -> Event {
        let usage = match self.usage {
            StreamUsage::Never => None,
            StreamUsage::AtEnd => Some(None),
            StreamUsage::Always => Some(Some(usage.into())),
        };
        let (head, choices, prompt_logprobs) = (&self.head, vec![choice], None);
        sse::json(&Body { head, choices, usage, prompt_logprobs })
    }

    /// Adds the end of a stream: the usage, if it was requested, and the mark that it is complete.
    pub(crate) fn end(&self, usage: Usage, out: &mut VecDeque<Event>) {
        if self.usage != StreamUsage::Never {
            let usage = Some(Some(usage.into()));
            let (head, choices, prompt_logprobs) = (&self.head, Vec::new(), None);
            out.push_back(sse::json(&Body::<()> { head, choices, usage, prompt_logprobs }));
        }
        out.push_back(Event::default().data("[DONE]"));
    }
}

/// An answer, or a chunk of one.
#[derive(Debug, Serialize)]
pub(crate) struct Body<'a, C> {
    #[serde(flatten)]
    pub(crate) head: &'a Head,
    pub(crate) choices: Vec<C>,
    /// Absent where a stream did not request it; null in the chunks before the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Option<UsageBody>>,
    /// Of a chat's prompt, where it was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_logprobs: Option<PromptLogprobs>,
}

/// The tokens of a request.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct UsageBody {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: CompletionDetails,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct PromptDetails {
    cached_tokens: usize,
    audio_tokens: usize,
}

#[derive(Debug, Clone, Copy, Default, Serialize)]
struct CompletionDetails {
    reasoning_tokens: usize,
    audio_tokens: usize,
    accepted_prediction_tokens: usize,
    rejected_prediction_tokens: usize,
}

impl From<Usage> for UsageBody {
    fn from(usage: Usage) -> Self {
        let Usage { prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens } = usage;
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptDetails { cached_tokens, audio_tokens: 0 },
            completion_tokens_details: CompletionDetails {
                reasoning_tokens,
                ..CompletionDetails::default()
            },
        }
    }
}
