//! Texts and tokens without generation: `/tokenize`, `/detokenize`, `/apply-template`. Each takes
//! the fields of vLLM and those of llama-server, and answers with both.

use crate::api::openai::conversation::ConversationFields;
use crate::chat::tools::ToolRequest;
use crate::error::ApiError;
use crate::http::extract::JsonBody;
use crate::registry::ModelLease;
use crate::state::AppState;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use realizar_runtime::tokenizer::{EncodeOptions, GuardedText};
use serde::Deserialize;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;

/// Tokens of an answer that are written at once.
const CHUNK: usize = 1024;

#[derive(Debug, Deserialize)]
pub(crate) struct TokenizeFields {
    model: Option<String>,
    prompt: Option<String>,  // vLLM
    content: Option<String>, // llama-server
    add_special_tokens: Option<bool>,
    return_token_strs: Option<bool>,
    add_special: Option<bool>,
    parse_special: Option<bool>,
    with_pieces: Option<bool>,
}

/// The token ids of `prompt`, of `content` or of a conversation.
///
/// vLLM adds the tokens that the model expects around a prompt by default,
/// llama-server only on request; the name of the field says which of them is meant.
pub(crate) async fn tokenize(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Response, ApiError> {
    let read = |body: &JsonBody| {
        let (fields, conversation) = (body.read::<TokenizeFields>()?, body.read()?);
        let conversation: ConversationFields = conversation;
        Ok((fields, conversation, tools_of(body)?))
    };
    let ((fields, conversation, tools), held) = body.parse(read).await?;
    let model = state.model(fields.model.as_deref()).await?;
    let given = [
        ("prompt", fields.prompt.is_some()),
        ("content", fields.content.is_some()),
        ("messages", conversation.has_messages()),
    ];
    let mut given = given.into_iter().filter(|(_, is_given)| *is_given);
    if let (Some((one, _)), Some((other, _))) = (given.next(), given.next()) {
        let message = format!("`{one}` and `{other}` are mutually exclusive");
        return Err(ApiError::invalid(other, message));
    }
    let (text, add_special) = match (fields.prompt, fields.content) {
        (Some(text), _) => {
            (GuardedText::unguarded(text), fields.add_special_tokens.unwrap_or(true))
        }
        (None, Some(text)) => (GuardedText::unguarded(text), fields.add_special.unwrap_or(false)),
        (None, None) if conversation.has_messages() => {
            let text = conversation.render(&held, &model, tools).await?.text;
            (text, fields.add_special_tokens.unwrap_or(false))
        }
        (None, None) => {
            let message = "one of `prompt`, `messages` and `content` is required";
            return Err(ApiError::invalid("prompt", message));
        }
    };
    let parse_special = fields.parse_special.unwrap_or(true);
    let options = EncodeOptions { add_special, parse_special };
    let (strings, pieces) =
        (fields.return_token_strs.unwrap_or(false), fields.with_pieces.unwrap_or(false));
    let tokens = held.work(move || {
        let ids = model.tokenizer().encode_guarded(&text, options)?;
        drop(text);
        // An id that has no bytes is found before the answer begins.
        if pieces || strings {
            ids.iter().try_for_each(|&id| model.tokenizer().token_bytes(id).map(drop))?;
        }
        Ok(Tokens { ids, model, pieces, strings })
    });
    let tokens = tokens.await?;
    // The answer is many times as long as the ids, and is written as it is read.
    let chunks = tokens.into_chunks().map(move |chunk| {
        let _ = &held;
        Ok::<_, Infallible>(chunk)
    });
    let body = Body::from_stream(stream::iter(chunks));
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// The answer of `/tokenize`.
struct Tokens {
    ids: Vec<u32>,
    model: ModelLease,
    /// Whether each token is returned with its text.
    pieces: bool,
    /// Whether there is a list of their texts.
    strings: bool,
}

impl Tokens {
    /// The JSON of the answer, piece by piece.
    fn into_chunks(self) -> impl Iterator<Item = String> {
        let (n, context) = (self.ids.len(), self.model.engine.model().max_seq_len());
        let head = format!(r#"{{"count":{n},"max_model_len":{context},"tokens":["#);
        let between = if self.strings { r#"],"token_strs":["# } else { r#"],"token_strs":null}"# };
        let tokens = Arc::new(self);
        let lists = [(tokens.pieces, true), (true, false)];
        let lists = lists.into_iter().take(1 + usize::from(tokens.strings));
        let of_list = move |(idx, (texts, ids)): (usize, (bool, bool))| {
            let tokens = tokens.clone();
            let starts = (0..n).step_by(CHUNK);
            let chunks = starts.map(move |start| tokens.chunk(start, ids, texts));
            let end = if idx == 0 { between } else { "]}" };
            chunks.chain(std::iter::once(end.to_owned()))
        };
        std::iter::once(head).chain(lists.enumerate().flat_map(of_list))
    }

    /// Some tokens of a list: their ids, their texts, or both.
    fn chunk(&self, start: usize, ids: bool, texts: bool) -> String {
        let mut out = String::new();
        let end = self.ids.len().min(start + CHUNK);
        for (idx, &id) in self.ids[start..end].iter().enumerate() {
            if start + idx > 0 {
                out.push(',');
            }
            let bytes = || self.model.tokenizer().token_bytes(id).unwrap_or_default();
            // Writing to a string does not fail.
            let _ = match (ids, texts) {
                (true, true) => write!(out, r#"{{"id":{id},"piece":{}}}"#, piece(bytes())),
                (true, false) => write!(out, "{id}"),
                (false, _) => write!(out, "{}", json!(String::from_utf8_lossy(bytes()))),
            };
        }
        out
    }
}

/// A token's bytes as llama-server shows them: their text, or the list of them if they are a part of a
/// character.
fn piece(bytes: &[u8]) -> Value {
    str::from_utf8(bytes).map_or_else(|_| json!(bytes), |text| json!(text))
}

#[derive(Debug, Deserialize)]
pub(crate) struct DetokenizeFields {
    model: Option<String>,
    tokens: Option<Vec<u32>>,
}

/// The text of token ids.
pub(crate) async fn detokenize(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let (fields, held) = body.parse(JsonBody::read::<DetokenizeFields>).await?;
    let model = state.model(fields.model.as_deref()).await?;
    let Some(tokens) = fields.tokens else {
        return Err(ApiError::invalid("tokens", "`tokens` is required"));
    };
    let text = held.work(move || {
        let text = model.tokenizer().decode(&tokens, false);
        text.map_err(|error| ApiError::invalid("tokens", error.to_string()))
    });
    let text = text.await?;
    Ok(Json(json!({"prompt": text, "content": text})))
}

#[derive(Debug, Deserialize)]
pub(crate) struct ModelField {
    model: Option<String>,
}

/// The tools of a request, as its conversation shows them.
fn tools_of(body: &JsonBody) -> Result<Option<Vec<Value>>, ApiError> {
    Ok(ToolRequest::from_chat(&body.pick(&ToolRequest::FIELDS)?)?.for_template())
}

/// The text of a conversation.
pub(crate) async fn apply_template(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let read = |body: &JsonBody| {
        let conversation: ConversationFields = body.read()?;
        Ok((body.read::<ModelField>()?, conversation, tools_of(body)?))
    };
    let ((ModelField { model }, conversation, tools), held) = body.parse(read).await?;
    let model = state.model(model.as_deref()).await?;
    let rendered = conversation.render(&held, &model, tools).await?;
    Ok(Json(json!({"prompt": rendered.text.text()})))
}
