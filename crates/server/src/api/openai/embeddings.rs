//! `POST /v1/embeddings`: vectors of texts, by a model that was loaded for them.

use crate::answer::embedding::{self, EmbeddingUsage, Wanted};
use crate::answer::prompt::Prompts;
use crate::error::ApiError;
use crate::http::extract::JsonBody;
use crate::state::AppState;
use axum::Json;
use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use realizar_runtime::EmbedParams;
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize)]
pub(crate) struct Fields {
    model: Option<String>,
    input: Option<Prompts>,
    encoding_format: Option<Format>,
    dimensions: Option<usize>,
    priority: Option<i32>,
    truncate_prompt_tokens: Option<i64>,
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
    let (fields, held) = body.parse(JsonBody::read::<Fields>).await?;
    let model = embedding::model(&state, fields.model.as_deref()).await?;
    if let (Some(n), Some((_, width))) = (fields.dimensions, model.engine.model().embedding())
        && !(1..=width).contains(&n)
    {
        let message = format!("`dimensions` is {n}; the model's embeddings have {width}");
        return Err(ApiError::invalid("dimensions", message));
    }
    let texts = fields.input.map(|prompts| prompts.0).unwrap_or_default();
    let params = EmbedParams { dimensions: fields.dimensions, ..EmbedParams::default() };
    let truncate = embedding::truncation(fields.truncate_prompt_tokens)?;
    let wanted =
        Wanted { param: "input", params, priority: fields.priority, truncate, context: None };
    let (vectors, usage) = embedding::embed(&state, &held, &model, texts, wanted).await?;
    let item = |(index, values)| Item {
        object: "embedding",
        index,
        embedding: Embedding::new(values, fields.encoding_format.unwrap_or_default()),
    };
    let data = vectors.into_iter().enumerate().map(item).collect();
    Ok(Json(Body { object: "list", data, model: model.name.clone(), usage }))
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
