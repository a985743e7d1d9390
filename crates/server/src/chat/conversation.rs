//! What all the APIs have in common: the request that each is turned into, and the answer that
//! each writes in its own way.

use realizar_runtime::template::Message;
use serde_json::Value;

use crate::chat::delta::ChatDelta;
use crate::chat::tools::{CallKind, ToolRequest};

/// A request for the next message of a conversation. Parameters that are absent have the
/// server's defaults; their ranges are checked where they are used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConversationRequest {
    /// The model's name.
    pub model: String,
    /// The conversation, as OpenAI's chat API has it.
    pub messages: Vec<Message>,
    /// The answer continues with the last message.
    pub continues: bool,
    /// The tools.
    pub tools: ToolRequest,
    /// The maximum number of tokens to generate.
    pub max_tokens: Option<usize>,
    /// The temperature.
    pub temperature: Option<f64>,
    /// The probability that the most likely tokens must reach together.
    pub top_p: Option<f64>,
    /// The number of the most likely tokens that are kept.
    pub top_k: Option<usize>,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// Whether the answer comes in pieces.
    pub stream: bool,
    /// The form of the answer, as the chat API's `response_format`.
    pub response_format: Option<Value>,
    /// Whether and how much the model is to reason.
    pub reasoning: ReasoningRequest,
    /// The requesting user, if the request names one.
    pub user: Option<String>,
}

/// What a request says of reasoning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReasoningRequest {
    /// Turns it on or off, where the template can.
    pub enabled: Option<bool>,
    /// The maximum number of tokens of reasoning.
    pub budget_tokens: Option<usize>,
    /// How much effort: `low`, `medium`, `high`, …
    pub effort: Option<String>,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The model ended it.
    End,
    /// One of the request's stop texts, this one.
    StopText(String),
    /// The maximum number of tokens, or the end of the context.
    Length,
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenUsage {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Of these, how many were in the cache.
    pub cached: usize,
    /// Tokens that were generated.
    pub generated: usize,
    /// Of these, how many were reasoning.
    pub reasoning: usize,
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerPart {
    /// Reasoning.
    Reasoning(String),
    /// Text for the user.
    Content(String),
    /// A tool call.
    ToolCall {
        /// Its id.
        id: String,
        /// The function.
        name: String,
        /// The arguments, as the model wrote them; of a custom tool, the text of its input.
        arguments: String,
        /// Which kind of tool it is.
        kind: CallKind,
    },
}

/// A whole answer, put together from its pieces in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The parts. No two neighbours are both reasoning or both content.
    pub parts: Vec<AnswerPart>,
}

impl Answer {
    /// Adds a piece.
    pub fn push(&mut self, delta: ChatDelta) {
        match (delta, self.parts.last_mut()) {
            (ChatDelta::Content(text), Some(AnswerPart::Content(content))) => {
                content.push_str(&text);
            }
            (ChatDelta::Content(text), _) => self.parts.push(AnswerPart::Content(text)),
            (ChatDelta::Reasoning(text), Some(AnswerPart::Reasoning(reasoning))) => {
                reasoning.push_str(&text);
            }
            (ChatDelta::Reasoning(text), _) => self.parts.push(AnswerPart::Reasoning(text)),
            (ChatDelta::ToolCallStart { id, name, kind, .. }, _) => {
                let arguments = String::new();
                self.parts.push(AnswerPart::ToolCall { id, name, arguments, kind });
            }
            (ChatDelta::ToolCallArguments { index, text }, _) => {
                let mut calls = self.parts.iter_mut().filter_map(|part| match part {
                    AnswerPart::ToolCall { arguments, .. } => Some(arguments),
                    _ => None,
                });
                if let Some(arguments) = calls.nth(index) {
                    arguments.push_str(&text);
                }
            }
        }
    }

    /// Whether there are tool calls.
    pub fn has_tool_calls(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, AnswerPart::ToolCall { .. }))
    }

    /// All text for the user.
    pub fn content(&self) -> String {
        let texts = self.parts.iter().filter_map(|part| match part {
            AnswerPart::Content(text) => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// All reasoning.
    pub fn reasoning(&self) -> String {
        let texts = self.parts.iter().filter_map(|part| match part {
            AnswerPart::Reasoning(text) => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }
}

impl FromIterator<ChatDelta> for Answer {
    fn from_iter<I: IntoIterator<Item = ChatDelta>>(deltas: I) -> Self {
        let mut answer = Self::default();
        deltas.into_iter().for_each(|delta| answer.push(delta));
        answer
    }
}

/// One event of a stream: its name and its data.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamEvent {
    /// The name, for the line that begins with `event:`.
    pub event: &'static str,
    /// The JSON of the line that begins with `data:`.
    pub data: Value,
}
