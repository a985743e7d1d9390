//! Log-probabilities as JSON, in the style of chat completions and in that of plain ones.

use super::text_offset::TextOffsets;
use crate::answer::generation::TokenLogprob;
use crate::api::digits;
use crate::error::ApiError;
use realizar_runtime::engine::PromptLogprob;
use realizar_runtime::tokenizer::Tokenizer;
use serde::{Serialize, Serializer};

/// A log-probability as every API writes it: the fewest digits that distinguish it from all other F32
/// numbers, so that equal ones have equal text, and at least [`Self::LOWEST`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(transparent)]
pub(crate) struct Logprob(f32);

impl Logprob {
    /// What stands for minus infinity, which JSON does not have.
    const LOWEST: f32 = -9999.0;
}

impl Logprob {
    /// The same as a value of JSON, which are F64 numbers.
    pub(crate) fn digits(self) -> f64 {
        digits(self.0)
    }
}

impl From<f32> for Logprob {
    fn from(logprob: f32) -> Self {
        Self(logprob.max(Self::LOWEST))
    }
}

/// The style of chat completions.
#[derive(Debug, Serialize)]
pub(crate) struct ChatLogprobs {
    content: Vec<ChatToken>,
    refusal: (),
}

#[derive(Debug, Serialize)]
struct ChatToken {
    token: String,
    logprob: Logprob,
    bytes: Vec<u8>,
    top_logprobs: Vec<TopToken>,
}

#[derive(Debug, Serialize)]
struct TopToken {
    token: String,
    logprob: Logprob,
    bytes: Vec<u8>,
}

/// The style of plain completions: lists side by side.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(crate) struct ListLogprobs {
    text_offset: Vec<usize>,
    token_logprobs: Vec<Option<Logprob>>,
    tokens: Vec<String>,
    top_logprobs: Vec<Option<TopByText>>,
}

/// Likely tokens by their texts: an object, best first and then the chosen one.
#[derive(Debug, Default, PartialEq)]
struct TopByText(Vec<(String, Logprob)>);

impl TopByText {
    /// Adds a token, unless one before it has the same text.
    fn add(&mut self, text: String, logprob: Logprob) {
        if self.0.iter().all(|(other, _)| *other != text) {
            self.0.push((text, logprob));
        }
    }
}

impl Serialize for TopByText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(text, logprob)| (text, logprob)))
    }
}

/// How tokens are written beside their log-probabilities.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Names<'a> {
    pub(crate) tokenizer: &'a Tokenizer,
    /// As `token_id:N` instead of by their text.
    pub(crate) as_ids: bool,
}

impl<'a> Names<'a> {
    /// The bytes of a token.
    pub(crate) fn bytes(self, id: u32) -> &'a [u8] {
        bytes(self.tokenizer, id)
    }

    /// The text of a token, or its id.
    pub(crate) fn text(self, id: u32) -> String {
        if self.as_ids { format!("token_id:{id}") } else { text(self.tokenizer, id) }
    }

    /// The same, and of a token that is part of a character, `bytes:` and the bytes, so that two
    /// tokens do not look the same.
    fn unambiguous(self, id: u32) -> String {
        let bytes = bytes(self.tokenizer, id);
        if self.as_ids || std::str::from_utf8(bytes).is_ok() {
            return self.text(id);
        }
        let escaped: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
        format!("bytes:{escaped}")
    }
}

/// Log-probabilities of a chat's answer.
pub(crate) fn chat(names: Names<'_>, tokens: &[TokenLogprob]) -> ChatLogprobs {
    let tokenizer = names.tokenizer;
    let token = |token: &TokenLogprob| ChatToken {
        token: names.text(token.id),
        logprob: token.logprob.unwrap_or(f32::NEG_INFINITY).into(),
        bytes: bytes(tokenizer, token.id).to_owned(),
        top_logprobs: token
            .top
            .iter()
            .map(|top| TopToken {
                token: names.text(top.id),
                logprob: top.logprob.into(),
                bytes: bytes(tokenizer, top.id).to_owned(),
            })
            .collect(),
    };
    ChatLogprobs { content: tokens.iter().map(token).collect(), refusal: () }
}

/// Log-probabilities of `tokens`, whose places in the text `offsets` tells.
pub(crate) fn lists(
    names: Names<'_>,
    tokens: &[TokenLogprob],
    offsets: &mut TextOffsets,
) -> Result<ListLogprobs, ApiError> {
    let mut lists = ListLogprobs::default();
    for token in tokens {
        lists.text_offset.push(offsets.next(token.id)?);
        let name = names.unambiguous(token.id);
        let top = token.logprob.map(|logprob| {
            let mut by_text = TopByText::default();
            for top in &token.top {
                by_text.add(names.unambiguous(top.id), top.logprob.into());
            }
            // The sampled token is returned even if it is not among the most likely.
            by_text.add(name.clone(), logprob.into());
            by_text
        });
        lists.tokens.push(name);
        lists.token_logprobs.push(token.logprob.map(Logprob::from));
        lists.top_logprobs.push(top);
    }
    Ok(lists)
}

/// The style of vLLM for prompts: for each token, likely ones by their ids. Nothing is known of
/// how likely the first one was.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct PromptLogprobs(Vec<Option<ById>>);

/// Tokens by their ids: an object that begins with the prompt's own.
#[derive(Debug)]
struct ById(Vec<(u32, RankedToken)>);

#[derive(Debug, Serialize)]
struct RankedToken {
    logprob: Logprob,
    /// Its place among all tokens, from 1.
    rank: usize,
    decoded_token: String,
}

impl Serialize for ById {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(id, token)| (id.to_string(), token)))
    }
}

/// Log-probabilities of a prompt's tokens after the first, with the `k` most likely ones at each
/// place.
pub(crate) fn of_prompt(
    tokenizer: &Tokenizer,
    tokens: &[PromptLogprob],
    k: usize,
) -> PromptLogprobs {
    let token = |id, logprob: f32, rank| {
        let decoded_token = text(tokenizer, id);
        (id, RankedToken { logprob: logprob.into(), rank, decoded_token })
    };
    let at = |own: &PromptLogprob| {
        let others = own.top_logprobs.iter().take(k).zip(1..).filter(|(top, _)| top.id != own.id);
        let others = others.map(|(top, rank)| token(top.id, top.logprob, rank));
        let own = token(own.id, own.logprob, own.rank);
        Some(ById(std::iter::once(own).chain(others).collect()))
    };
    PromptLogprobs(std::iter::once(None).chain(tokens.iter().map(at)).collect())
}

/// The bytes of a token; none for a row of the model that pads its vocabulary.
fn bytes(tokenizer: &Tokenizer, id: u32) -> &[u8] {
    tokenizer.token_bytes(id).unwrap_or_default()
}

fn text(tokenizer: &Tokenizer, id: u32) -> String {
    String::from_utf8_lossy(bytes(tokenizer, id)).into_owned()
}
