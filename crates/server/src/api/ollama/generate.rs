//! `POST /api/chat` and `POST /api/generate`.

use super::answer::{Clock, Kind, Telling, nothing};
use super::known_name;
use super::request::{Asked, NAMES, Prompt, read_chat, read_generate};
use crate::answer::generation::Job;
use crate::answer::ndjson;
use crate::api::dialects;
use crate::api::openai::completions;
use crate::chat::parser::ChatParserOptions;
use crate::error::{ApiError, LoadError};
use crate::http::auth;
use crate::http::extract::{Held, JsonBody};
use crate::ignored::Api;
use crate::registry::{KeepAlive, ModelLease};
use crate::state::AppState;
use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use std::time::{Duration, Instant};

/// Answers with the next message of a conversation.
pub(crate) async fn chat(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Response, ApiError> {
    let (asked, held) = body.parse(|body| Ok(read_chat(&body.read_request(Api::Ollama)?)?)).await?;
    answer(&state, &headers, Kind::Chat, asked, held).await
}

/// Completes a text, or answers it.
pub(crate) async fn generate(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Response, ApiError> {
    let (asked, held) =
        body.parse(|body| Ok(read_generate(&body.read_request(Api::Ollama)?)?)).await?;
    answer(&state, &headers, Kind::Generate, asked, held).await
}

async fn answer(
    state: &AppState,
    headers: &HeaderMap,
    kind: Kind,
    mut asked: Asked,
    held: Held,
) -> Result<Response, ApiError> {
    let start = Instant::now();
    let (shown, name) = (asked.model.clone(), known_name(state, &asked.model));
    let unloads = asked.keep_alive == Some(KeepAlive::NOT);
    if unloads {
        auth::check_admin(state, headers)?;
    }
    if unloads && matches!(asked.prompt, Prompt::None) {
        match state.models().unload(&name, true).await {
            Ok(()) | Err(LoadError::NotLoaded { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        return Ok(Json(nothing(kind, &shown, "unload")).into_response());
    }
    let model = state.model(Some(&name)).await?;
    keep(state, headers, &model, asked.keep_alive)?;
    let load = start.elapsed();
    let (stream, logprobs) = (asked.stream, asked.logprobs.is_some());
    let (job, parser) = match std::mem::take(&mut asked.prompt) {
        Prompt::None => {
            let body = nothing(kind, &shown, "load");
            return Ok(match stream {
                true => ndjson::of(stream::iter([Ok(ndjson::line(&body))])),
                false => Json(body).into_response(),
            });
        }
        Prompt::Messages(messages) => {
            check_thinking(&model, &asked)?;
            let (request, more) = asked.into_conversation(name, messages);
            let chat = dialects::read(state, request, held, more, NAMES).await?;
            (chat.job, Some(chat.parser))
        }
        Prompt::Text { text, suffix } => {
            (raw(state, asked, held, &name, &text, suffix).await?, None)
        }
    };
    let clock = Clock { start, load, submitted: Instant::now(), first: None };
    tell(state, kind, shown, job, parser, logprobs, stream, clock).await
}

/// Has a model stay as long as a request wants. A client that may not unload models cannot have it go earlier
/// than the server would, and not with the request.
pub(super) fn keep(
    state: &AppState,
    headers: &HeaderMap,
    model: &ModelLease,
    keep_alive: Option<KeepAlive>,
) -> Result<(), ApiError> {
    let Some(keep_alive) = keep_alive else { return Ok(()) };
    let keep_alive = match auth::check_admin(state, headers) {
        Ok(()) => keep_alive,
        Err(error) if keep_alive == KeepAlive::NOT => return Err(error),
        Err(_) => keep_alive.or_longer(state.models().config().keep_alive),
    };
    Ok(state.models().keep_alive(&model.name, keep_alive)?)
}

/// The job of a text that is gone on with as it is.
async fn raw(
    state: &AppState,
    asked: Asked,
    held: Held,
    name: &str,
    text: &str,
    suffix: Option<String>,
) -> Result<Job, ApiError> {
    let body = JsonBody::of(asked.into_completion(name, text, suffix), held).await?;
    let read = completions::read(state, body).await;
    read.map(|completion| completion.job).map_err(|error| error.renamed(NAMES))
}

#[expect(clippy::too_many_arguments, reason = "what was found out of one request")]
async fn tell(
    state: &AppState,
    kind: Kind,
    shown: String,
    job: Job,
    parser: Option<ChatParserOptions>,
    logprobs: bool,
    stream: bool,
    clock: Clock,
) -> Result<Response, ApiError> {
    let mut telling = Telling::new(kind, shown, job.model.clone(), parser, logprobs, clock);
    let mut generation = job.start(state)?;
    if stream {
        return Ok(ndjson::respond(state, generation, telling));
    }
    while let Some(progress) = generation.next().await {
        telling.read(progress?)?;
    }
    Ok(Json(telling.last(generation.usage())?).into_response())
}

/// A model without reasoning cannot be asked to reason.
fn check_thinking(model: &ModelLease, asked: &Asked) -> Result<(), ApiError> {
    let wants = asked.reasoning.enabled == Some(true) || asked.reasoning.effort.is_some();
    if wants && model.chat_side()?.reasoning.is_none() {
        let message = format!("the model `{}` does not support thinking", model.name);
        return Err(ApiError::invalid("think", message));
    }
    Ok(())
}

/// How long something took, if it was waited for at all.
pub(super) async fn timed<T>(
    work: impl Future<Output = Result<T, ApiError>>,
) -> Result<(T, Duration), ApiError> {
    let start = Instant::now();
    let done = work.await?;
    Ok((done, start.elapsed()))
}
