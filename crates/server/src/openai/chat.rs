//! `POST /v1/chat/completions`: the next message of a conversation.

use super::chat_chunks::ChatChunks;
use super::conversation::ConversationFields;
use super::logprobs::{self, ChatLogprobs};
use super::parser::{ChatDelta, ChatParser};
use super::refused;
use super::sampling::{CommonFields, StreamUsage, check_context, check_logprobs};
use super::types::{Body, Head};
use crate::error::ApiError;
use crate::extract::JsonBody;
use crate::generation::{Answer, Finish, Job};
use crate::prompt::{self, Prompt};
use crate::sse;
use crate::state::AppState;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use realizar_runtime::tokenizer::{EncodeOptions, Tokenizer};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The fields that only chat completions have, but for those of the conversation.
#[derive(Debug, Deserialize)]
struct Fields {
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
}

/// A request that was read and found right.
struct Chat {
    job: Job,
    head: Head,
    stream: Option<StreamUsage>,
    logprobs: bool,
}

#[derive(Debug, Serialize)]
struct Choice {
    index: usize,
    message: MessageBody,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Finish,
    stop_reason: Option<String>,
}

#[derive(Debug, Serialize)]
struct MessageBody {
    role: &'static str,
    content: Option<String>,
    refusal: (),
    annotations: [(); 0],
}

/// Answers a request for chat completions.
pub(crate) async fn create(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Response, ApiError> {
    let Chat { job, mut head, stream, logprobs } = read(&state, &body).await?;
    let (model, n) = (job.model.clone(), job.n);
    let generation = job.start(&state)?;
    if let Some(usage) = stream {
        head.object = "chat.completion.chunk";
        let chunks = ChatChunks::new(model, head, usage, logprobs, n);
        return Ok(sse::respond(&state, generation, chunks));
    }
    let done = generation.collect().await?;
    let tokenizer = model.tokenizer();
    let choices = done.answers.into_iter().enumerate();
    let choices = choices.map(|(index, answer)| choice(index, answer, logprobs, tokenizer));
    let (choices, usage) = (choices.collect(), Some(Some(done.usage.into())));
    Ok(Json(Body { head: &head, choices, usage }).into_response())
}

/// Answers with the token ids that a request for chat completions would give the engine.
pub(crate) async fn render(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let Chat { job, head, .. } = read(&state, &body).await?;
    let Job { prompts, params, .. } = job;
    let mut sampling_params = json!(params.sampling);
    sampling_params["max_tokens"] = json!(params.max_tokens);
    Ok(Json(json!({
        "request_id": head.id,
        "model": head.model,
        "token_ids": prompts.into_iter().next(),
        "sampling_params": sampling_params,
    })))
}

async fn read(state: &AppState, body: &JsonBody) -> Result<Chat, ApiError> {
    let common: CommonFields = body.read()?;
    let fields: Fields = body.read()?;
    let conversation: ConversationFields = body.read()?;
    refused::check_chat(body)?;
    let model = state.model(common.model.as_deref())?;
    let limits = &state.config().limits;
    let logprobs = fields.logprobs.unwrap_or(false);
    let top = fields.top_logprobs.unwrap_or(0);
    if top > 0 && !logprobs {
        let message = "`top_logprobs` is only allowed when `logprobs` is true";
        return Err(ApiError::invalid("top_logprobs", message));
    }
    let top = check_logprobs("top_logprobs", top, limits)?;
    let params = common.params(&model, limits, None, logprobs.then_some(top))?;
    if params.max_tokens == Some(0) {
        let param = common.max_tokens_param();
        return Err(ApiError::invalid(param, format!("`{param}` must be at least 1")));
    }
    let (n, stream) = (common.answers(&model, limits)?, common.stream()?);
    let text = conversation.render(&model).await?;
    // The template writes the special tokens itself.
    let add_special = common.add_special_tokens().unwrap_or(false);
    let options = EncodeOptions { add_special, parse_special: true };
    let prompts = prompt::encode(&model, vec![Prompt::Text(text)], options).await?;
    let params_of = ("messages", common.max_tokens_param());
    check_context(&model, limits, &prompts, params.max_tokens, params_of)?;
    let name = common.model.as_deref().filter(|name| !name.is_empty()).unwrap_or(&model.name);
    Ok(Chat {
        head: Head::new("chatcmpl-", "chat.completion", name),
        stream,
        logprobs,
        job: Job {
            prompts,
            params,
            n,
            priority: common.priority(),
            prompt_logprobs: None,
            include_stop: common.include_stop(),
            model: model.clone(),
        },
    })
}

fn choice(index: usize, answer: Answer, logprobs: bool, tokenizer: &Tokenizer) -> Choice {
    let (mut content, mut deltas) = (String::new(), Vec::new());
    ChatParser.push(&answer.text, &mut deltas);
    for delta in deltas {
        match delta {
            ChatDelta::Content(text) => content.push_str(&text),
        }
    }
    Choice {
        index,
        message: MessageBody {
            role: "assistant",
            content: Some(content),
            refusal: (),
            annotations: [],
        },
        logprobs: logprobs.then(|| logprobs::chat(tokenizer, &answer.tokens)),
        finish_reason: answer.reason,
        stop_reason: answer.stop,
    }
}
