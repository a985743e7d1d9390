//! `POST /api/embed` and the older `POST /api/embeddings`: vectors of texts.

use super::generate::{keep, timed};
use super::request::keep_alive;
use super::{known_name, nanos};
use crate::answer::embedding::{self, Wanted};
use crate::answer::prompt::Prompt;
use crate::error::ApiError;
use crate::fields::{Fields, InvalidRequest};
use crate::http::extract::JsonBody;
use crate::ignored::Api;
use crate::registry::KeepAlive;
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

/// Reads a request of `/api/embed`.
pub(crate) fn read_embed(body: &Map<String, Value>) -> Result<Asked, InvalidRequest> {
    let root = Fields::root(body);
    let input = root.require("input")?;
    let texts = match input {
        Value::String(text) => Some(vec![text.clone()]),
        Value::Array(list) => list.iter().map(|text| text.as_str().map(str::to_owned)).collect(),
        _ => None,
    };
    let expected = "a text or a list of texts";
    let texts = texts.ok_or_else(|| InvalidRequest::value(root.path("input"), expected, input))?;
    let truncate = root.bool("truncate")?.unwrap_or(true);
    let dimensions = root.count("dimensions")?.filter(|&n| n > 0);
    let (model, keep_alive) = (model(&root)?, keep_alive(&root)?);
    Ok(Asked { model, texts, dimensions, truncate, keep_alive })
}

/// Reads a request of `/api/embeddings`.
pub(crate) fn read_embeddings(body: &Map<String, Value>) -> Result<Asked, InvalidRequest> {
    let root = Fields::root(body);
    let texts = vec![root.require_str("prompt")?.to_owned()];
    let (model, keep_alive) = (model(&root)?, keep_alive(&root)?);
    Ok(Asked { model, texts, dimensions: None, truncate: true, keep_alive })
}

/// The model; a vector depends on no option.
fn model(root: &Fields<'_>) -> Result<String, InvalidRequest> {
    root.object("options")?;
    Ok(root.require_str("model")?.to_owned())
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
    let texts = asked.texts.into_iter().map(Prompt::Text).collect();
    let truncate = asked.truncate.then_some(usize::MAX);
    let wanted = Wanted { param: "input", params, priority: None, truncate };
    let (embeddings, usage) = embedding::embed(&state, &held, &model, texts, wanted).await?;
    Ok(Json(Embeddings {
        model: asked.model,
        embeddings,
        total_duration: nanos(start.elapsed()),
        load_duration: nanos(load),
        prompt_eval_count: usage.tokens(),
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
    let texts = asked.texts.into_iter().map(Prompt::Text).collect();
    let truncate = asked.truncate.then_some(usize::MAX);
    let wanted = Wanted { param: "prompt", params, priority: None, truncate };
    let (mut vectors, _) = embedding::embed(&state, &held, &model, texts, wanted).await?;
    Ok(Json(Embedding { embedding: vectors.pop().unwrap_or_default() }))
}
