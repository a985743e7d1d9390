//! The chunks of a stream of chat completions: the role first, then deltas, then why it ended.

use super::chat::{self, Ended, Shown, end, finish};
use super::logprobs::{self, ChatLogprobs, Names};
use super::stored::Keeper;
use super::types::{Body, Head, StreamHead};
use crate::answer::generation::{Finish, Progress, TokenLogprob, Usage};
use crate::answer::sse;
use crate::answer::stream::Chunks;
use crate::chat::conversation::Answer;
use crate::chat::delta::ChatDelta;
use crate::chat::parser::{ChatParser, ChatParserOptions};
use crate::chat::tools::CallKind;
use crate::error::ApiError;
use crate::registry::ModelLease;
use axum::response::sse::Event;
use realizar_runtime::StopCause;
use serde::Serialize;
use serde_json::json;
use std::collections::VecDeque;

/// Turns what happens to the answers into chunks.
pub(crate) struct ChatChunks {
    model: ModelLease,
    head: StreamHead,
    shown: Shown,
    answers: Vec<AnswerState>,
    /// Keeps the whole completion at the end.
    keeper: Option<Keeper>,
    /// The answers that are complete, to be kept.
    complete: Vec<chat::Choice>,
}

struct AnswerState {
    parser: ChatParser,
    /// Tokens that have made no text certain yet.
    held: Vec<TokenLogprob>,
    /// The kinds of the calls so far.
    calls: Vec<CallKind>,
    /// What was told so far, if it is to be kept.
    kept: Option<KeptAnswer>,
}

/// An answer and its tokens.
#[derive(Default)]
struct KeptAnswer {
    answer: Answer,
    tokens: Vec<TokenLogprob>,
}

impl AnswerState {
    fn delta(&mut self, delta: ChatDelta, legacy: bool) -> Delta {
        if let Some(kept) = &mut self.kept {
            kept.answer.push(delta.clone());
        }
        match delta {
            ChatDelta::Content(content) => Delta::Content { content },
            ChatDelta::Reasoning(reasoning_content) => Delta::Reasoning { reasoning_content },
            ChatDelta::ToolCallStart { name, .. } if legacy => {
                let (name, arguments) = (Some(name), String::new());
                Delta::Function { function_call: FunctionDelta { name, arguments } }
            }
            ChatDelta::ToolCallArguments { text, .. } if legacy => {
                Delta::Function { function_call: FunctionDelta { name: None, arguments: text } }
            }
            ChatDelta::ToolCallStart { index, id, name, kind } => {
                self.calls.push(kind);
                let (id, r#type) = (Some(id), Some(kind.name()));
                let call = ToolDelta::new(index, kind, Some(name), String::new());
                Delta::Tools { tool_calls: [ToolDelta { id, r#type, ..call }] }
            }
            ChatDelta::ToolCallArguments { index, text } => {
                let kind = self.calls.get(index).copied().unwrap_or_default();
                Delta::Tools { tool_calls: [ToolDelta::new(index, kind, None, text)] }
            }
        }
    }
}

#[derive(Debug, Serialize)]
struct Choice {
    index: usize,
    delta: Delta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<Finish>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<StopCause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<Vec<u32>>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Delta {
    Role { role: &'static str, content: &'static str, refusal: () },
    Content { content: String },
    Reasoning { reasoning_content: String },
    Tools { tool_calls: [ToolDelta; 1] },
    Function { function_call: FunctionDelta },
    Nothing {},
}

#[derive(Debug, Default, Serialize)]
struct ToolDelta {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<FunctionDelta>,
    #[serde(skip_serializing_if = "Option::is_none")]
    custom: Option<CustomDelta>,
}

#[derive(Debug, Serialize)]
struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

#[derive(Debug, Serialize)]
struct CustomDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    input: String,
}

impl ToolDelta {
    /// A piece of a call of this kind; the first has its name.
    fn new(index: usize, kind: CallKind, name: Option<String>, text: String) -> Self {
        match kind {
            CallKind::Function => {
                let function = Some(FunctionDelta { name, arguments: text });
                Self { index, function, ..Self::default() }
            }
            CallKind::Custom => {
                let custom = Some(CustomDelta { name, input: text });
                Self { index, custom, ..Self::default() }
            }
        }
    }
}

impl ChatChunks {
    pub(crate) fn new(
        model: ModelLease,
        head: StreamHead,
        shown: Shown,
        parsers: Vec<ChatParserOptions>,
        keeper: Option<Keeper>,
    ) -> Self {
        let answer = |options| AnswerState {
            parser: ChatParser::new(options),
            held: Vec::new(),
            calls: Vec::new(),
            kept: keeper.is_some().then(KeptAnswer::default),
        };
        let answers = parsers.into_iter().map(answer).collect();
        Self { model, head, shown, answers, keeper, complete: Vec::new() }
    }

    /// The tokens so far, with those that were reasoning.
    fn usage(&self, usage: Usage) -> Usage {
        let reasoning = self.answers.iter().map(|answer| answer.parser.reasoning_tokens());
        Usage { reasoning_tokens: reasoning.sum(), ..usage }
    }

    /// Emits parts of the message, the first with the tokens held so far.
    fn deltas(
        &mut self,
        index: usize,
        deltas: Vec<ChatDelta>,
        usage: Usage,
        out: &mut VecDeque<Event>,
    ) {
        for delta in deltas {
            let delta = self.answers[index].delta(delta, self.shown.legacy);
            self.chunk(index, delta, None, usage, out);
        }
    }

    /// Emits a part of the message or its end, with the tokens held so far.
    fn chunk(
        &mut self,
        index: usize,
        delta: Delta,
        finish: Option<(Finish, Option<StopCause>)>,
        usage: Usage,
        out: &mut VecDeque<Event>,
    ) {
        let held = std::mem::take(&mut self.answers[index].held);
        let has_tokens = !held.is_empty();
        let logprobs = (self.shown.logprobs && has_tokens).then(|| {
            let (tokenizer, as_ids) = (self.model.tokenizer(), self.shown.as_ids);
            logprobs::chat(Names { tokenizer, as_ids }, &held)
        });
        let tokens =
            (self.shown.ids && has_tokens).then(|| held.iter().map(|token| token.id).collect());
        let (finish_reason, stop_reason) = finish.unzip();
        let stop_reason = stop_reason.flatten();
        let choice = Choice { index, delta, logprobs, finish_reason, stop_reason, tokens };
        out.push_back(self.head.chunk(choice, self.usage(usage)));
    }
}

impl Chunks for ChatChunks {
    type Piece = Event;

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
                    self.chunk(index, delta, None, usage, out);
                }
                Ok(())
            }
            Progress::Token(mut token) => {
                let (index, text) = (token.index, std::mem::take(&mut token.text));
                let answer = &mut self.answers[index];
                let token = TokenLogprob::from(token);
                if let Some(kept) = &mut answer.kept
                    && (self.shown.logprobs || self.shown.ids)
                {
                    kept.tokens.push(token.clone());
                }
                answer.held.push(token);
                let mut deltas = Vec::new();
                answer.parser.push_token(&text, &mut deltas);
                self.deltas(index, deltas, usage, out);
                Ok(())
            }
            Progress::Finished { answer: index, reason, tail, stop } => {
                let parser = &mut self.answers[index].parser;
                let mut deltas = Vec::new();
                parser.push(&tail, &mut deltas);
                end(parser, reason, &mut deltas);
                let reason = finish(reason, parser, self.shown);
                self.deltas(index, deltas, usage, out);
                if let Some(KeptAnswer { answer, tokens }) = self.answers[index].kept.take() {
                    let stop_reason = stop.clone();
                    let ended = Ended { finish_reason: reason, stop_reason, tokens: &tokens };
                    let tokenizer = self.model.tokenizer();
                    let whole = chat::Choice::new(index, answer, ended, self.shown, tokenizer);
                    self.complete.push(whole);
                }
                self.chunk(index, Delta::Nothing {}, Some((reason, stop)), usage, out);
                Ok(())
            }
        }
    }

    fn end(&mut self, usage: Usage, out: &mut VecDeque<Event>) {
        let usage = self.usage(usage);
        if let Some(keeper) = self.keeper.take() {
            let head = Head { object: "chat.completion", ..self.head.head.clone() };
            let mut choices = std::mem::take(&mut self.complete);
            choices.sort_by_key(chat::Choice::index);
            let (head, usage, prompt_logprobs) = (&head, Some(Some(usage.into())), None);
            keeper.keep(json!(Body { head, choices, usage, prompt_logprobs }));
        }
        self.head.end(usage, out);
    }

    fn fail(&mut self, error: &ApiError, out: &mut VecDeque<Event>) {
        out.push_back(sse::failure(error));
    }
}
