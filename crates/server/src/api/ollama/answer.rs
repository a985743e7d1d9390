//! Answers of `/api/chat` and `/api/generate`: pieces of a stream, or one object.

use super::{nanos, now};
use crate::answer::generation::{Finish, Progress, TokenLogprob, Usage};
use crate::answer::ndjson;
use crate::answer::stream::Chunks;
use crate::api::openai::chat;
use crate::api::openai::logprobs::{self, Names};
use crate::chat::delta::ChatDelta;
use crate::chat::parser::{ChatParser, ChatParserOptions};
use crate::error::ApiError;
use crate::registry::ModelLease;
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Whether a text is a message or a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Chat,
    Generate,
}

/// When things happened.
#[derive(Debug)]
pub(super) struct Clock {
    pub(super) start: Instant,
    /// How long the model was waited for.
    pub(super) load: Duration,
    /// When the prompt was handed to the engine.
    pub(super) submitted: Instant,
    pub(super) first: Option<Instant>,
}

/// What of an answer is emitted at a time.
#[derive(Debug, Default)]
struct Piece {
    content: String,
    thinking: String,
    calls: Vec<Value>,
    logprobs: Vec<Value>,
}

/// Writes an answer.
pub(super) struct Telling {
    kind: Kind,
    /// The model's name, as the request has it.
    name: String,
    model: ModelLease,
    /// None of a text that is returned unchanged.
    parser: Option<ChatParser>,
    has_logprobs: bool,
    clock: Clock,
    piece: Piece,
    /// The name and the arguments of a call that is not complete.
    call: Option<(String, String)>,
    ended: Finish,
}

impl Telling {
    pub(super) fn new(
        kind: Kind,
        name: String,
        model: ModelLease,
        parser: Option<ChatParserOptions>,
        has_logprobs: bool,
        clock: Clock,
    ) -> Self {
        let (piece, parser) = (Piece::default(), parser.map(ChatParser::new));
        let (call, ended) = (None, Finish::Stop);
        Self { kind, name, model, parser, has_logprobs, clock, piece, call, ended }
    }

    /// Adds what `progress` makes certain to the piece.
    pub(super) fn read(&mut self, progress: Progress) -> Result<(), ApiError> {
        let mut deltas = Vec::new();
        match progress {
            Progress::Prompt { .. } => {}
            Progress::Token(mut token) => {
                self.clock.first.get_or_insert_with(Instant::now);
                let text = std::mem::take(&mut token.text);
                if self.has_logprobs {
                    self.add_logprob(token.into())?;
                }
                self.push(&text, &mut deltas);
            }
            Progress::Finished { reason, tail, .. } => {
                self.ended = reason;
                self.push(&tail, &mut deltas);
                if let Some(parser) = &mut self.parser {
                    chat::end(parser, reason, &mut deltas);
                }
            }
        }
        deltas.into_iter().try_for_each(|delta| self.add(delta))
    }

    fn push(&mut self, text: &str, deltas: &mut Vec<ChatDelta>) {
        match &mut self.parser {
            Some(parser) => parser.push(text, deltas),
            None => self.piece.content.push_str(text),
        }
    }

    fn add_logprob(&mut self, token: TokenLogprob) -> Result<(), ApiError> {
        let names = Names { tokenizer: self.model.tokenizer(), as_ids: false };
        let told = serde_json::to_value(logprobs::chat(names, &[token]));
        let told = told.map_err(|error| ApiError::internal(error.to_string()))?;
        self.piece.logprobs.extend(told["content"].as_array().into_iter().flatten().cloned());
        Ok(())
    }

    fn add(&mut self, delta: ChatDelta) -> Result<(), ApiError> {
        match delta {
            ChatDelta::Content(text) => self.piece.content.push_str(&text),
            ChatDelta::Reasoning(text) => self.piece.thinking.push_str(&text),
            ChatDelta::ToolCallStart { name, .. } => {
                self.end_call()?;
                self.call = Some((name, String::new()));
            }
            ChatDelta::ToolCallArguments { text, .. } => {
                if let Some((_, arguments)) = &mut self.call {
                    arguments.push_str(&text);
                }
            }
        }
        Ok(())
    }

    /// Writes a call, whose arguments are an object here and not text.
    fn end_call(&mut self) -> Result<(), ApiError> {
        let Some((name, arguments)) = self.call.take() else { return Ok(()) };
        let text = if arguments.trim().is_empty() { "{}" } else { &arguments };
        match serde_json::from_str::<Map<String, Value>>(text) {
            Ok(arguments) => {
                let function = json!({"name": name, "arguments": arguments});
                self.piece.calls.push(json!({"function": function}));
                Ok(())
            }
            // The answer was cut in the middle of it, which `done_reason` tells.
            Err(_) if self.ended == Finish::Length => Ok(()),
            Err(error) => {
                let message =
                    format!("the model called `{name}` with malformed arguments: {error}");
                Err(ApiError::internal(message))
            }
        }
    }

    /// An object with the piece.
    fn body(&mut self, done: bool) -> Value {
        let Piece { content, thinking, calls, logprobs } = std::mem::take(&mut self.piece);
        let mut body = json!({"model": self.name, "created_at": now(), "done": done});
        let mut text = match self.kind {
            Kind::Chat => json!({"role": "assistant", "content": content}),
            Kind::Generate => json!({"response": content}),
        };
        if !thinking.is_empty() {
            text["thinking"] = json!(thinking);
        }
        if !calls.is_empty() {
            text["tool_calls"] = json!(calls);
        }
        if !logprobs.is_empty() {
            body["logprobs"] = json!(logprobs);
        }
        match (self.kind, text, body.as_object_mut()) {
            (Kind::Generate, Value::Object(text), Some(body)) => body.extend(text),
            (_, text, _) => body["message"] = text,
        }
        body
    }

    /// The object that ends an answer, with what was not emitted before.
    pub(super) fn last(&mut self, usage: Usage) -> Result<Value, ApiError> {
        self.end_call()?;
        let mut body = self.body(true);
        let now = Instant::now();
        let first = self.clock.first.unwrap_or(now);
        body["done_reason"] = json!(if self.ended == Finish::Length { "length" } else { "stop" });
        body["total_duration"] = json!(nanos(self.clock.start.elapsed()));
        body["load_duration"] = json!(nanos(self.clock.load));
        body["prompt_eval_count"] = json!(usage.prompt_tokens);
        body["prompt_eval_duration"] = json!(nanos(first - self.clock.submitted));
        body["eval_count"] = json!(usage.completion_tokens);
        body["eval_duration"] = json!(nanos(now - first));
        Ok(body)
    }
}

impl Chunks for Telling {
    type Piece = String;

    fn progress(
        &mut self,
        progress: Progress,
        _: Usage,
        out: &mut VecDeque<String>,
    ) -> Result<(), ApiError> {
        self.read(progress)?;
        let Piece { content, thinking, calls, .. } = &self.piece;
        if !content.is_empty() || !thinking.is_empty() || !calls.is_empty() {
            let body = self.body(false);
            out.push_back(ndjson::line(&body));
        }
        Ok(())
    }

    fn end(&mut self, usage: Usage, out: &mut VecDeque<String>) {
        match self.last(usage) {
            Ok(body) => out.push_back(ndjson::line(&body)),
            Err(error) => self.fail(&error, out),
        }
    }

    fn fail(&mut self, error: &ApiError, out: &mut VecDeque<String>) {
        out.push_back(ndjson::failure(error));
    }
}

/// The answer to a request that only loads or unloads a model.
pub(super) fn nothing(kind: Kind, name: &str, reason: &str) -> Value {
    let mut body = json!({"model": name, "created_at": now(), "done": true, "done_reason": reason});
    match kind {
        Kind::Chat => body["message"] = json!({"role": "assistant", "content": ""}),
        Kind::Generate => body["response"] = json!(""),
    }
    body
}
