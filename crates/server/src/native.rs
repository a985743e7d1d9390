//! Texts and tokens without generation: `/tokenize`, `/detokenize`, `/apply-template`. Each takes
//! the fields of vLLM and those of llama-server, and answers with both.

use crate::error::ApiError;
use crate::extract::JsonBody;
use crate::openai::conversation::ConversationFields;
use crate::prompt::blocking;
use crate::state::AppState;
use crate::tools::ToolRequest;
use axum::Json;
use axum::extract::State;
use realizar_runtime::tokenizer::{EncodeOptions, GuardedText};
use serde::Deserialize;
use serde_json::{Value, json};

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
/// vLLM adds the tokens that the model expects around a prompt unless it is told not to,
/// llama-server only where it is told to; the name of the field tells which of them is meant.
pub(crate) async fn tokenize(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let fields: TokenizeFields = body.read()?;
    let conversation: ConversationFields = body.read()?;
    let tools = tools_of(&body)?;
    let model = state.model(fields.model.as_deref()).await?;
    let given = [
        ("prompt", fields.prompt.is_some()),
        ("content", fields.content.is_some()),
        ("messages", conversation.has_messages()),
    ];
    let mut given = given.into_iter().filter(|(_, is_given)| *is_given);
    if let (Some((one, _)), Some((other, _))) = (given.next(), given.next()) {
        let message = format!("`{one}` and `{other}` exclude one another");
        return Err(ApiError::invalid(other, message));
    }
    let (text, add_special) = match (fields.prompt, fields.content) {
        (Some(text), _) => {
            (GuardedText::unguarded(text), fields.add_special_tokens.unwrap_or(true))
        }
        (None, Some(text)) => (GuardedText::unguarded(text), fields.add_special.unwrap_or(false)),
        (None, None) if conversation.has_messages() => {
            let text = conversation.render(&model, tools).await?.text;
            (text, fields.add_special_tokens.unwrap_or(false))
        }
        (None, None) => {
            let message = "one of `prompt`, `messages` and `content` is needed";
            return Err(ApiError::invalid("prompt", message));
        }
    };
    let parse_special = fields.parse_special.unwrap_or(true);
    let options = EncodeOptions { add_special, parse_special };
    let (strings, pieces) =
        (fields.return_token_strs.unwrap_or(false), fields.with_pieces.unwrap_or(false));
    let body = blocking(move || {
        let tokenizer = model.tokenizer();
        let ids = tokenizer.encode_guarded(&text, options)?;
        let piece = |id: u32| tokenizer.token_text(id);
        let tokens = match pieces {
            false => json!(ids),
            true => ids
                .iter()
                .map(|&id| Ok(json!({"id": id, "piece": piece(id)?})))
                .collect::<Result<Value, ApiError>>()?,
        };
        let token_strs = match strings {
            false => None,
            true => Some(ids.iter().map(|&id| piece(id)).collect::<Result<Vec<_>, _>>()?),
        };
        Ok(json!({
            "count": ids.len(),
            "max_model_len": model.engine.model().max_seq_len(),
            "tokens": tokens,
            "token_strs": token_strs,
        }))
    });
    Ok(Json(body.await?))
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
    let fields: DetokenizeFields = body.read()?;
    let model = state.model(fields.model.as_deref()).await?;
    let Some(tokens) = fields.tokens else {
        return Err(ApiError::invalid("tokens", "`tokens` is needed"));
    };
    let text = blocking(move || {
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

/// The tools of a request, as its conversation tells of them.
fn tools_of(body: &JsonBody) -> Result<Option<Vec<Value>>, ApiError> {
    Ok(ToolRequest::from_chat(&body.read()?)?.for_template())
}

/// The text of a conversation.
pub(crate) async fn apply_template(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let ModelField { model } = body.read()?;
    let conversation: ConversationFields = body.read()?;
    let model = state.model(model.as_deref()).await?;
    let rendered = conversation.render(&model, tools_of(&body)?).await?;
    Ok(Json(json!({"prompt": rendered.text.text()})))
}
