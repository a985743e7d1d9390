//! `POST /api/embed` and the older `POST /api/embeddings`: vectors of texts.

use super::generate::{keep, timed};
use super::request::keep_alive;
use super::{known_name, nanos};
use crate::answer::embedding::{self, Wanted};
use crate::answer::prompt::Prompt;
use crate::error::ApiError;
use crate::fields::{Fields, InvalidRequest};
use crate::http::extract::{Held, JsonBody};
use crate::ignored::Api;
use crate::registry::{KeepAlive, ModelLease};
use crate::state::AppState;
use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use realizar_runtime::EmbedParams;
use serde::Serialize;
use serde_json::{Map, Value};
use std::time::Instant;

/// What a request says.
#[derive(Debug)]
pub(crate) struct Asked {
    model: String,
    texts: Vec<String>,
    dimensions: Option<usize>,
    /// Texts that are too long are cut.
    truncate: bool,
    /// The maximum number of tokens per text, if less than the model's context.
    context: Option<usize>,
    /// How long the model is to stay after the request.
    keep_alive: Option<KeepAlive>,
}

/// The vectors; 32-bit floats keep their few digits where they are not values of JSON before.
#[derive(Debug, Serialize)]
pub(crate) struct Embeddings {
    model: String,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

/// The vector of `/api/embeddings`.
#[derive(Debug, Serialize)]
pub(crate) struct Embedding {
    embedding: Vec<f32>,
}

/// Reads a request of `/api/embed`. No input, or an empty one, asks for no vector and loads the model.
pub(crate) fn read_embed(body: &Map<String, Value>) -> Result<Asked, InvalidRequest> {
    let root = Fields::root(body);
    let input = root.get("input");
    let texts = match input {
        None => Some(Vec::new()),
        Some(Value::String(text)) => Some(some_text(text)),
        Some(Value::Array(list)) => {
            list.iter().map(|text| text.as_str().map(str::to_owned)).collect()
        }
        Some(_) => None,
    };
    let expected = "a text or a list of texts";
    let input = input.unwrap_or(&Value::Null);
    let texts = texts.ok_or_else(|| InvalidRequest::value(root.path("input"), expected, input))?;
    let truncate = root.bool("truncate")?.unwrap_or(true);
    let dimensions = root.count("dimensions")?.filter(|&n| n > 0);
    read(&root, texts, truncate, dimensions)
}

/// Reads a request of `/api/embeddings`, whose prompt may be missing or empty too.
pub(crate) fn read_embeddings(body: &Map<String, Value>) -> Result<Asked, InvalidRequest> {
    let root = Fields::root(body);
    read(&root, some_text(root.str("prompt")?.unwrap_or_default()), true, None)
}

/// A text that is not empty.
fn some_text(text: &str) -> Vec<String> {
    if text.is_empty() { Vec::new() } else { vec![text.to_owned()] }
}

/// Reads the fields of both requests. `num_ctx` is the only option that vectors depend on.
fn read(
    root: &Fields<'_>,
    texts: Vec<String>,
    truncate: bool,
    dimensions: Option<usize>,
) -> Result<Asked, InvalidRequest> {
    let context = match root.object("options")? {
        Some(options) => options.count("num_ctx")?.filter(|&n| n > 0),
        None => None,
    };
    let (model, keep_alive) = (root.require_str("model")?.to_owned(), keep_alive(root)?);
    Ok(Asked { model, texts, dimensions, truncate, context, keep_alive })
}

/// Answers with the vectors of texts, each of length 1.
pub(crate) async fn embed(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Json<Embeddings>, ApiError> {
    let start = Instant::now();
    let (asked, held) =
        body.parse(|body| Ok(read_embed(&body.read_request(Api::Ollama)?)?)).await?;
    let name = known_name(&state, &asked.model);
    let (model, load) = timed(embedding::model(&state, Some(&name))).await?;
    keep(&state, &headers, &model, asked.keep_alive)?;
    if let (Some(n), Some((_, width))) = (asked.dimensions, model.engine.model().embedding())
        && n > width
    {
        let message = format!("`dimensions` is {n}; the model's embeddings have {width}");
        return Err(ApiError::invalid("dimensions", message));
    }
    let params = EmbedParams { dimensions: asked.dimensions, ..EmbedParams::default() };
    let (model_name, param) = (asked.model.clone(), "input");
    let (embeddings, n_tokens) = vectors(&state, &held, &model, asked, param, params).await?;
    Ok(Json(Embeddings {
        model: model_name,
        embeddings,
        total_duration: nanos(start.elapsed()),
        load_duration: nanos(load),
        prompt_eval_count: n_tokens,
    }))
}

/// Answers with the vector of one text, as the model makes it.
pub(crate) async fn embeddings(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Json<Embedding>, ApiError> {
    let (asked, held) =
        body.parse(|body| Ok(read_embeddings(&body.read_request(Api::Ollama)?)?)).await?;
    let model = embedding::model(&state, Some(&known_name(&state, &asked.model))).await?;
    keep(&state, &headers, &model, asked.keep_alive)?;
    let params = EmbedParams { normalize: false, ..EmbedParams::default() };
    let (mut vectors, _) = vectors(&state, &held, &model, asked, "prompt", params).await?;
    Ok(Json(Embedding { embedding: vectors.pop().unwrap_or_default() }))
}

/// The vectors of a request's texts and the number of their tokens.
async fn vectors(
    state: &AppState,
    held: &Held,
    model: &ModelLease,
    asked: Asked,
    param: &str,
    params: EmbedParams,
) -> Result<(Vec<Vec<f32>>, usize), ApiError> {
    if asked.texts.is_empty() {
        return Ok((Vec::new(), 0));
    }
    let truncate = asked.truncate.then_some(usize::MAX);
    let wanted = Wanted { param, params, priority: None, truncate, context: asked.context };
    let texts = asked.texts.into_iter().map(Prompt::Text).collect();
    let (vectors, usage) = embedding::embed(state, held, model, texts, wanted).await?;
    Ok((vectors, usage.tokens()))
}
