//! `POST /rerank`, `/v1/rerank`: documents in the order of how near they are to a query, in the
//! shape of Jina and Cohere, as vLLM has it. The score is the cosine of the embeddings.

use crate::answer::embedding::{self, EmbeddingUsage, Wanted, cosine};
use crate::answer::prompt::Prompt;
use crate::api::scores::score;
use crate::error::ApiError;
use crate::http::extract::JsonBody;
use crate::ids;
use crate::state::AppState;
use axum::Json;
use axum::extract::State;
use realizar_runtime::EmbedParams;
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize)]
pub(crate) struct Fields {
    model: Option<String>,
    query: Option<Document>,
    documents: Option<Vec<Document>>,
    /// 0 is all of them.
    top_n: Option<usize>,
    return_documents: Option<bool>,
    priority: Option<i32>,
    truncate_prompt_tokens: Option<i64>,
}

/// A text, alone or in an object.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "expected a text or an object with a `text`")]
enum Document {
    Plain(String),
    Object { text: String },
}

impl Document {
    fn into_text(self) -> String {
        match self {
            Self::Plain(text) | Self::Object { text } => text,
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Body {
    id: String,
    model: String,
    usage: EmbeddingUsage,
    results: Vec<RankedDocument>,
}

#[derive(Debug, Serialize)]
struct RankedDocument {
    /// Where it stands in the request.
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<DocumentBody>,
    relevance_score: f64,
}

#[derive(Debug, Serialize)]
struct DocumentBody {
    text: String,
}

/// Answers a request to rank documents.
pub(crate) async fn create(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Json<Body>, ApiError> {
    let read = |body: &JsonBody| {
        score::refuse(body)?;
        body.read::<Fields>()
    };
    let (fields, held) = body.parse(read).await?;
    let query = fields.query.ok_or_else(|| ApiError::invalid("query", "`query` is required"))?;
    let documents = fields.documents.unwrap_or_default();
    let most = state.config().limits.texts;
    if documents.is_empty() || documents.len() >= most {
        let message = format!("expected 1 to {} documents, found {}", most - 1, documents.len());
        return Err(ApiError::invalid("documents", message));
    }
    let model = embedding::model(&state, fields.model.as_deref()).await?;
    let documents: Vec<String> = documents.into_iter().map(Document::into_text).collect();
    let texts = std::iter::once(query.into_text()).chain(documents.iter().cloned());
    let texts = texts.map(Prompt::Text).collect();
    let (params, priority) = (EmbedParams::default(), fields.priority);
    let truncate = embedding::truncation(fields.truncate_prompt_tokens)?;
    let wanted = Wanted { param: "documents", params, priority, truncate, context: None };
    let (vectors, usage) = embedding::embed(&state, &held, &model, texts, wanted).await?;
    let scores = vectors[1..].iter().map(|vector| cosine(&vectors[0], vector)).collect();
    let mut documents: Vec<Option<String>> = documents.into_iter().map(Some).collect();
    let with_text = fields.return_documents.unwrap_or(true);
    let ranked = ranked(scores, fields.top_n).into_iter().map(|(index, relevance_score)| {
        let text = documents[index].take().filter(|_| with_text);
        RankedDocument { index, document: text.map(|text| DocumentBody { text }), relevance_score }
    });
    let (id, results) = (ids::new("rerank-"), ranked.collect());
    Ok(Json(Body { id, model: model.name.clone(), usage, results }))
}

/// The best scores with their indices, the best first and equal ones in their order; without
/// `top_n`, or with 0, all.
fn ranked(scores: Vec<f64>, top_n: Option<usize>) -> Vec<(usize, f64)> {
    let mut ranked: Vec<_> = scores.into_iter().enumerate().collect();
    ranked.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    ranked.truncate(top_n.filter(|&n| n > 0).unwrap_or(usize::MAX));
    ranked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_come_first() {
        let scores = || vec![0.5, -1.0, 0.75, 0.5];
        let all = [(2, 0.75), (0, 0.5), (3, 0.5), (1, -1.0)];
        for (top_n, n) in [(None, 4), (Some(0), 4), (Some(9), 4), (Some(2), 2)] {
            assert_eq!(ranked(scores(), top_n), all[..n], "{top_n:?}");
        }
    }

    #[test]
    fn documents_are_texts_or_have_one() {
        for (json, want) in [
            (r#""a""#, Some("a")),
            (r#"{"text": "b", "x": 1}"#, Some("b")),
            ("{}", None),
            ("1", None),
        ] {
            let read = serde_json::from_str::<Document>(json);
            assert_eq!(read.ok().map(Document::into_text).as_deref(), want, "{json}");
        }
    }
}
