//! Answers that are messages in channels, as gpt-oss writes them (OpenAI's harmony format).
//!
//! `<|channel|>analysis<|message|>…<|end|>` is reasoning, the channel `final` the answer, and a message
//! in `commentary` to `functions.name` a call, whose text is its arguments. `commentary` without a recipient is
//! for the user. The prompt ends after `<|start|>assistant`, which begins a message.

use realizar_runtime::constrain::Reasoning;
use std::sync::Arc;

use super::ids::CallIds;
use super::reader::partial_len;
use super::{CallKind, Function};
use crate::chat::delta::ChatDelta;

/// The control tokens.
pub(super) const MARKERS: [&str; 7] =
    [START, CHANNEL, MESSAGE, "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"];
/// What begins a message.
const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
/// What ends a message's header.
const MESSAGE: &str = "<|message|>";
/// What ends a message.
const ENDS: [&str; 5] = ["<|end|>", "<|call|>", "<|return|>", START, CHANNEL];
/// What begins the reasoning.
pub(crate) const REASONING_OPEN: &str = "<|channel|>analysis<|message|>";
/// What stands between the reasoning and the answer.
pub(crate) const REASONING_CLOSE: &str = "<|end|><|start|>assistant<|channel|>final<|message|>";

/// The same reasoning where the next message must be to a function instead of being the answer.
pub(crate) fn before_a_call(reasoning: Reasoning) -> Reasoning {
    Reasoning { close: "<|end|><|start|>assistant".to_owned(), ..reasoning }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    Reasoning,
    Content,
    Call {
        has_arguments: bool,
    },
    /// A call after the only one that is wanted.
    Dropped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Only white space has been seen.
    Start,
    Header,
    Body(Body),
    Between,
}

/// Splits an answer into reasoning, content and calls.
#[derive(Debug)]
pub(crate) struct HarmonyParser {
    functions: Option<Arc<[Function]>>,
    single: bool,
    ids: CallIds,
    state: State,
    buf: String,
    n_calls: usize,
    is_complete: bool,
}

impl HarmonyParser {
    /// A parser; without `functions` there are no calls, and what looks like one is content.
    pub(crate) fn new(functions: Option<Arc<[Function]>>, single: bool, ids: CallIds) -> Self {
        let (state, buf) = (State::Start, String::new());
        Self { functions, single, ids, state, buf, n_calls: 0, is_complete: false }
    }

    /// Whether the one call that is wanted is complete.
    pub(crate) fn is_complete(&self) -> bool {
        self.single && self.is_complete
    }

    /// Whether there was a call.
    pub(crate) fn has_calls(&self) -> bool {
        self.n_calls > 0
    }

    pub(crate) fn push(&mut self, text: &str, out: &mut Vec<ChatDelta>) {
        self.buf.push_str(text);
        while self.step(out) {}
    }

    pub(crate) fn finish(&mut self, out: &mut Vec<ChatDelta>) {
        let rest = std::mem::take(&mut self.buf);
        match self.state {
            State::Start | State::Between if !rest.trim().is_empty() => {
                self.tell(Body::Content, &rest, out);
            }
            State::Body(body) => {
                self.tell(body, &rest, out);
                self.end(out);
            }
            _ => {}
        }
    }

    /// Decides what can be decided next; false if that needs more text.
    fn step(&mut self, out: &mut Vec<ChatDelta>) -> bool {
        match self.state {
            State::Start | State::Between => {
                let text = self.buf.trim_start();
                let begins = |mark: &str| text.starts_with(mark);
                if begins(START) || begins(CHANNEL) || begins("to=") {
                    self.buf = text.to_owned();
                    self.state = State::Header;
                } else if [START, CHANNEL, "to="].iter().any(|mark| mark.starts_with(text)) {
                    return false;
                } else {
                    // Not a message, as an answer that a grammar begins with.
                    self.state = State::Body(Body::Content);
                }
            }
            State::Header => {
                let Some(end) = self.buf.find(MESSAGE) else { return false };
                let header = self.buf[..end].to_owned();
                self.buf.drain(..end + MESSAGE.len());
                self.begin(&header, out);
            }
            State::Body(body) => {
                let ends = ENDS.iter().filter_map(|end| Some((self.buf.find(end)?, *end)));
                let Some((at, end)) = ends.min() else {
                    let held = ENDS.iter().map(|end| partial_len(&self.buf, end)).max();
                    let text: String =
                        self.buf.drain(..self.buf.len() - held.unwrap_or(0)).collect();
                    self.tell(body, &text, out);
                    return false;
                };
                let text: String = self.buf.drain(..at).collect();
                // Where the end is forgotten, the next message has begun.
                let is_next = end == START || end == CHANNEL;
                self.buf.drain(..if is_next { 0 } else { end.len() });
                self.tell(body, &text, out);
                self.end(out);
            }
        }
        true
    }

    fn begin(&mut self, header: &str, out: &mut Vec<ChatDelta>) {
        let word_behind = |mark: &str| {
            let rest = &header[header.find(mark)? + mark.len()..];
            let end = rest.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(rest.len());
            Some(&rest[..end])
        };
        let recipient = word_behind("to=").filter(|name| *name != "user" && *name != "all");
        let known = |name: &str| match &self.functions {
            Some(functions) => functions.iter().any(|f| f.name == name),
            None => false,
        };
        let function = recipient.and_then(|name| match name.strip_prefix("functions.") {
            Some(function) => self.functions.is_some().then_some(function),
            None => known(name).then_some(name),
        });
        let body = match (function, word_behind(CHANNEL)) {
            (Some(_), _) if self.single && self.n_calls > 0 => Body::Dropped,
            (Some(name), _) => {
                let (index, id, name) = (self.n_calls, self.ids.next_id(), name.to_owned());
                let kind = CallKind::Function;
                out.push(ChatDelta::ToolCallStart { index, id, name, kind });
                self.n_calls += 1;
                Body::Call { has_arguments: false }
            }
            (None, Some("analysis")) => Body::Reasoning,
            (None, _) => Body::Content,
        };
        self.state = State::Body(body);
    }

    /// Emits the next piece of a message's text.
    fn tell(&mut self, body: Body, text: &str, out: &mut Vec<ChatDelta>) {
        match body {
            _ if text.is_empty() => {}
            Body::Reasoning => out.push(ChatDelta::Reasoning(text.to_owned())),
            Body::Content => out.push(ChatDelta::Content(text.to_owned())),
            Body::Dropped => {}
            Body::Call { has_arguments } => {
                let text = if has_arguments { text } else { text.trim_start() };
                if let (Some(index), false) = (self.n_calls.checked_sub(1), text.is_empty()) {
                    out.push(ChatDelta::ToolCallArguments { index, text: text.to_owned() });
                    self.state = State::Body(Body::Call { has_arguments: true });
                }
            }
        }
    }

    /// A message ended.
    fn end(&mut self, out: &mut Vec<ChatDelta>) {
        if let State::Body(Body::Call { has_arguments }) = self.state {
            if let (Some(index), false) = (self.n_calls.checked_sub(1), has_arguments) {
                out.push(ChatDelta::ToolCallArguments { index, text: "{}".to_owned() });
            }
            self.is_complete = true;
        }
        self.state = State::Between;
    }
}
