//! `POST /v1/embeddings`: vectors of texts, by a model that was loaded for them.

use super::types::EmbeddingUsage;
use crate::error::ApiError;
use crate::extract::JsonBody;
use crate::prompt::{self, Prompts};
use crate::state::{AppState, ServedModel};
use axum::Json;
use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use realizar_runtime::EmbedParams;
use realizar_runtime::engine::{EmbeddingRequest, EngineEvent};
use realizar_runtime::tokenizer::EncodeOptions;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tokio::sync::oneshot;

#[derive(Debug, Deserialize)]
pub(crate) struct Fields {
    model: Option<String>,
    input: Option<Prompts>,
    #[serde(default)]
    encoding_format: Format,
    dimensions: Option<usize>,
    priority: Option<i32>,
}

/// How a vector is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    #[default]
    Float,
    /// The bytes of its F32 values, little-endian, in base64.
    Base64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Body {
    object: &'static str,
    data: Vec<Item>,
    model: String,
    usage: EmbeddingUsage,
}

#[derive(Debug, Serialize)]
struct Item {
    object: &'static str,
    index: usize,
    embedding: Embedding,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(untagged)]
enum Embedding {
    Float(Vec<f32>),
    Base64(String),
}

impl Embedding {
    fn new(values: Vec<f32>, format: Format) -> Self {
        match format {
            Format::Float => Self::Float(values),
            Format::Base64 => {
                let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
                Self::Base64(STANDARD.encode(bytes))
            }
        }
    }
}

/// Answers a request for embeddings.
pub(crate) async fn create(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Json<Body>, ApiError> {
    let fields: Fields = body.read()?;
    let model = model(&state, fields.model.as_deref())?;
    let limits = &state.config().limits;
    let texts = fields.input.map(|prompts| prompts.0).unwrap_or_default();
    if texts.is_empty() || texts.len() > limits.prompts {
        let message = format!("{} texts are not from 1 to {}", texts.len(), limits.prompts);
        return Err(ApiError::invalid("input", message));
    }
    if let (Some(n), Some((_, width))) = (fields.dimensions, model.engine.model().embedding())
        && !(1..=width).contains(&n)
    {
        let message = format!("`dimensions` is {n}; the model's embeddings have {width}");
        return Err(ApiError::invalid("dimensions", message));
    }
    let options = EncodeOptions { add_special: true, parse_special: false };
    let texts = prompt::encode(&model, texts, options).await;
    let texts = texts.map_err(|error| error.renamed(&[("prompt", "input")]))?;
    let context = model.engine.model().max_seq_len();
    let most = limits.prompt_tokens.unwrap_or(context).min(context);
    if let Some(long) = texts.iter().find(|ids| ids.len() > most) {
        let message = format!("a text has {} tokens; this model takes {most}", long.len());
        return Err(ApiError::context_length("input", message));
    }
    let usage = EmbeddingUsage::new(texts.iter().map(Vec::len).sum());
    let params = EmbedParams { dimensions: fields.dimensions, ..EmbedParams::default() };
    let mut pending = Vec::with_capacity(texts.len());
    for prompt in texts {
        let (sender, receiver) = oneshot::channel();
        let mut sender = Some(sender);
        // Nobody listens to a request that was dropped.
        let sink = Box::new(move |event| {
            let result = match event {
                EngineEvent::Embedding { values, .. } => Ok(values),
                EngineEvent::Failed(error) => Err(ApiError::from(error)),
                _ => return,
            };
            if let Some(sender) = sender.take() {
                drop(sender.send(result));
            }
        });
        let priority = fields.priority.unwrap_or(0);
        let request = EmbeddingRequest { prompt, params, priority };
        let ticket = model.engine.submit_embedding(request, sink)?;
        pending.push((ticket, receiver));
    }
    let mut data = Vec::with_capacity(pending.len());
    for (index, (_ticket, receiver)) in pending.into_iter().enumerate() {
        let ended = || ApiError::unavailable("the engine ended before the embedding was complete");
        let values = receiver.await.map_err(|_| ended())??;
        let embedding = Embedding::new(values, fields.encoding_format);
        data.push(Item { object: "embedding", index, embedding });
    }
    Ok(Json(Body { object: "list", data, model: model.name.clone(), usage }))
}

/// The model that is named; without a name, the first that was loaded for embeddings.
fn model(state: &AppState, name: Option<&str>) -> Result<Arc<ServedModel>, ApiError> {
    let embeds = |model: &Arc<ServedModel>| model.engine.model().embedding().is_some();
    let found = match name.filter(|name| !name.is_empty()) {
        Some(name) => state.model(Some(name))?,
        None => {
            let first = state.model(None)?;
            state.models().all().into_iter().find(embeds).unwrap_or(first)
        }
    };
    if embeds(&found) {
        return Ok(found);
    }
    let message = format!("the model `{}` was loaded for text, not for embeddings", found.name);
    Err(ApiError::invalid("model", message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_asked() {
        let values = vec![1.0, -0.5];
        assert_eq!(Embedding::new(values.clone(), Format::Float), Embedding::Float(values.clone()));
        let text = Embedding::Base64("AACAPwAAAL8=".to_owned());
        assert_eq!(Embedding::new(values, Format::Base64), text);
    }
}
