//! The chunks of a stream of chat completions: the role first, then deltas, then why it ended.

use super::logprobs::{self, ChatLogprobs};
use super::parser::{ChatDelta, ChatParser};
use super::sampling::StreamUsage;
use super::types::{Body, Head};
use crate::error::ApiError;
use crate::generation::{Finish, Progress, TokenLogprob, Usage};
use crate::sse::{self, Chunks};
use crate::state::ServedModel;
use axum::response::sse::Event;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Arc;

/// Turns what happens to the answers into chunks.
pub(crate) struct ChatChunks {
    model: Arc<ServedModel>,
    head: Head,
    usage: StreamUsage,
    logprobs: bool,
    answers: Vec<AnswerState>,
}

#[derive(Clone, Default)]
struct AnswerState {
    parser: ChatParser,
    /// Tokens that have made no text certain yet.
    held: Vec<TokenLogprob>,
}

#[derive(Debug, Serialize)]
struct Choice {
    index: usize,
    delta: Delta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<Finish>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Delta {
    Role { role: &'static str, content: &'static str, refusal: () },
    Content { content: String },
    Nothing {},
}

impl ChatChunks {
    pub(crate) fn new(
        model: Arc<ServedModel>,
        head: Head,
        usage: StreamUsage,
        logprobs: bool,
        n: usize,
    ) -> Self {
        Self { model, head, usage, logprobs, answers: vec![AnswerState::default(); n] }
    }

    fn chunk(&self, choice: Choice, usage: Usage) -> Event {
        let usage = match self.usage {
            StreamUsage::Never => None,
            StreamUsage::AtEnd => Some(None),
            StreamUsage::Always => Some(Some(usage.into())),
        };
        sse::json(&Body { head: &self.head, choices: vec![choice], usage })
    }

    /// Tells the parts of the message that `text` makes certain, with the tokens held so far.
    fn text(
        &mut self,
        index: usize,
        text: &str,
        usage: Usage,
        out: &mut VecDeque<Event>,
    ) -> Result<(), ApiError> {
        let mut deltas = Vec::new();
        self.answers[index].parser.push(text, &mut deltas);
        for delta in deltas {
            let delta = match delta {
                ChatDelta::Content(content) => Delta::Content { content },
            };
            let logprobs = self.take_logprobs(index)?;
            let (finish_reason, stop_reason) = (None, None);
            let choice = Choice { index, delta, logprobs, finish_reason, stop_reason };
            out.push_back(self.chunk(choice, usage));
        }
        Ok(())
    }

    fn take_logprobs(&mut self, index: usize) -> Result<Option<ChatLogprobs>, ApiError> {
        let held = std::mem::take(&mut self.answers[index].held);
        if !self.logprobs || held.is_empty() {
            return Ok(None);
        }
        Ok(Some(logprobs::chat(self.model.tokenizer(), &held)))
    }
}

impl Chunks for ChatChunks {
    fn progress(
        &mut self,
        progress: Progress,
        usage: Usage,
        out: &mut VecDeque<Event>,
    ) -> Result<(), ApiError> {
        match progress {
            Progress::Prompt { .. } => {
                for index in 0..self.answers.len() {
                    let delta = Delta::Role { role: "assistant", content: "", refusal: () };
                    let (logprobs, finish_reason, stop_reason) = (None, None, None);
                    let choice = Choice { index, delta, logprobs, finish_reason, stop_reason };
                    out.push_back(self.chunk(choice, usage));
                }
                Ok(())
            }
            Progress::Token(mut token) => {
                let (index, text) = (token.index, std::mem::take(&mut token.text));
                self.answers[index].held.push(token.into());
                self.text(index, &text, usage, out)
            }
            Progress::Finished { answer: index, reason, tail, stop } => {
                self.text(index, &tail, usage, out)?;
                let logprobs = self.take_logprobs(index)?;
                let (finish_reason, delta) = (Some(reason), Delta::Nothing {});
                let choice = Choice { index, delta, logprobs, finish_reason, stop_reason: stop };
                out.push_back(self.chunk(choice, usage));
                Ok(())
            }
        }
    }

    fn end(&mut self, usage: Usage, out: &mut VecDeque<Event>) {
        if self.usage != StreamUsage::Never {
            let usage = Some(Some(usage.into()));
            let body = Body::<Choice> { head: &self.head, choices: Vec::new(), usage };
            out.push_back(sse::json(&body));
        }
        out.push_back(Event::default().data("[DONE]"));
    }
}
