//! Log-probabilities as JSON, in the style of chat completions and in that of plain ones.

use crate::generation::TokenLogprob;
use realizar_runtime::tokenizer::Tokenizer;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// What stands for minus infinity, which JSON does not have.
const LOWEST: f32 = -9999.0;

/// The style of chat completions.
#[derive(Debug, Serialize)]
pub(crate) struct ChatLogprobs {
    content: Vec<ChatToken>,
    refusal: (),
}

#[derive(Debug, Serialize)]
struct ChatToken {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
    top_logprobs: Vec<TopToken>,
}

#[derive(Debug, Serialize)]
struct TopToken {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

/// The style of plain completions: lists side by side.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(crate) struct ListLogprobs {
    text_offset: Vec<usize>,
    token_logprobs: Vec<Option<f32>>,
    tokens: Vec<String>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
}

/// Log-probabilities of a chat's answer.
pub(crate) fn chat(tokenizer: &Tokenizer, tokens: &[TokenLogprob]) -> ChatLogprobs {
    let token = |token: &TokenLogprob| ChatToken {
        token: text(tokenizer, token.id),
        logprob: token.logprob.unwrap_or(LOWEST).max(LOWEST),
        bytes: bytes(tokenizer, token.id).to_owned(),
        top_logprobs: token
            .top
            .iter()
            .map(|top| TopToken {
                token: text(tokenizer, top.id),
                logprob: top.logprob.max(LOWEST),
                bytes: bytes(tokenizer, top.id).to_owned(),
            })
            .collect(),
    };
    ChatLogprobs { content: tokens.iter().map(token).collect(), refusal: () }
}

/// Log-probabilities of `tokens`, the first of which begins `offset` characters after the
/// beginning of the text; `offset` moves on behind the last one.
pub(crate) fn lists(
    tokenizer: &Tokenizer,
    tokens: &[TokenLogprob],
    offset: &mut usize,
) -> ListLogprobs {
    let mut lists = ListLogprobs::default();
    for token in tokens {
        lists.text_offset.push(*offset);
        *offset += text(tokenizer, token.id).chars().count();
        let name = unambiguous(tokenizer, token.id);
        let top = token.logprob.map(|logprob| {
            let mut map = Map::new();
            // The token that was chosen is told even if it is not among the most likely.
            let chosen = std::iter::once((token.id, logprob));
            for (id, logprob) in token.top.iter().map(|top| (top.id, top.logprob)).chain(chosen) {
                let entry = map.entry(unambiguous(tokenizer, id));
                entry.or_insert_with(|| json!(logprob.max(LOWEST)));
            }
            map
        });
        lists.tokens.push(name);
        lists.token_logprobs.push(token.logprob.map(|logprob| logprob.max(LOWEST)));
        lists.top_logprobs.push(top);
    }
    lists
}

/// The bytes of a token; none for a row of the model that pads its vocabulary.
fn bytes(tokenizer: &Tokenizer, id: u32) -> &[u8] {
    tokenizer.token_bytes(id).unwrap_or_default()
}

fn text(tokenizer: &Tokenizer, id: u32) -> String {
    String::from_utf8_lossy(bytes(tokenizer, id)).into_owned()
}

/// The text of a token; of one that is part of a character, `bytes:` and the bytes, so that two
/// tokens do not look the same.
fn unambiguous(tokenizer: &Tokenizer, id: u32) -> String {
    let bytes = bytes(tokenizer, id);
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let escaped: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            format!("bytes:{escaped}")
        }
    }
}
