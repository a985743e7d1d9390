//! `POST /score`, `/v1/score`: how near texts are to each other in pairs, in vLLM's shape. The
//! score is the cosine of the embeddings.

use crate::answer::embedding::{self, EmbeddingUsage, Wanted, cosine};
use crate::answer::prompt::Prompt;
use crate::error::ApiError;
use crate::fields;
use crate::http::extract::JsonBody;
use crate::ids;
use crate::state::AppState;
use axum::Json;
use axum::extract::State;
use realizar_runtime::EmbedParams;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The two sides, under each of the names that vLLM has for them.
#[derive(Debug, Deserialize)]
pub(crate) struct Fields {
    model: Option<String>,
    #[serde(alias = "queries", alias = "data_1")]
    text_1: Option<Texts>,
    #[serde(alias = "documents", alias = "items", alias = "data_2")]
    text_2: Option<Texts>,
    priority: Option<i32>,
    truncate_prompt_tokens: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
enum Texts {
    One(String),
    Many(Vec<String>),
}

impl Texts {
    fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::Many(texts) => texts,
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Body {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    data: Vec<Item>,
    usage: EmbeddingUsage,
}

#[derive(Debug, Serialize)]
struct Item {
    index: usize,
    object: &'static str,
    score: f64,
}

const REFUSED: &[&str] = &["chat_template_kwargs", "instruction", "rank_fields"];
const ONLY_ZERO: &[&str] = &["max_tokens_per_doc", "max_tokens_per_query"];

/// Fails on parameters of scores and ranks that cannot be honoured: texts are not put into a
/// template, nor cut one by one.
pub(crate) fn refuse(body: &JsonBody) -> Result<(), ApiError> {
    let map = body.pick(&[REFUSED, ONLY_ZERO].concat())?;
    let root = fields::Fields::root(&map);
    root.refuse(REFUSED)?;
    for key in ONLY_ZERO {
        root.only(key, &[json!(0)])?;
    }
    Ok(())
}

/// Answers a request for scores.
pub(crate) async fn create(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Json<Body>, ApiError> {
    let read = |body: &JsonBody| {
        refuse(body)?;
        body.read::<Fields>()
    };
    let (fields, held) = body.parse(read).await?;
    let need = |texts: Option<Texts>, param: &str| {
        let texts = texts.map(Texts::into_vec).unwrap_or_default();
        let missing =
            || ApiError::invalid(param, format!("`{param}` is required: one or more texts"));
        if texts.is_empty() { Err(missing()) } else { Ok(texts) }
    };
    let (first, second) = (need(fields.text_1, "text_1")?, need(fields.text_2, "text_2")?);
    let (n_first, n_second) = (first.len(), second.len());
    if n_first != 1 && n_first != n_second {
        let message = format!(
            "{n_first} and {n_second} texts cannot be paired: both need the same number, or \
             `text_1` exactly one"
        );
        return Err(ApiError::invalid("text_1", message));
    }
    let model = embedding::model(&state, fields.model.as_deref()).await?;
    let texts = first.into_iter().chain(second).map(Prompt::Text).collect();
    let (params, priority) = (EmbedParams::default(), fields.priority);
    let truncate = embedding::truncation(fields.truncate_prompt_tokens)?;
    let wanted = Wanted { param: "text_2", params, priority, truncate, context: None };
    let (vectors, usage) = embedding::embed(&state, &held, &model, texts, wanted).await?;
    let (first, second) = vectors.split_at(n_first);
    let item = |(index, b): (usize, &Vec<f32>)| {
        let a = if n_first == 1 { &first[0] } else { &first[index] };
        Item { index, object: "score", score: cosine(a, b) }
    };
    Ok(Json(Body {
        id: ids::new("score-"),
        object: "list",
        created: ids::unix_seconds(),
        model: model.name.clone(),
        data: second.iter().enumerate().map(item).collect(),
        usage,
    }))
}
