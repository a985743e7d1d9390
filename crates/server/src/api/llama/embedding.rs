//! `POST /embedding` and `/embeddings`: vectors of texts, each in a list of its own.

use super::prompt::{self, Prompts};
use crate::answer::embedding::{self, Wanted};
use crate::answer::prompt::Prompt;
use crate::api::openai::refused;
use crate::error::ApiError;
use crate::http::extract::JsonBody;
use crate::state::AppState;
use axum::Json;
use axum::extract::State;
use realizar_runtime::EmbedParams;
use realizar_runtime::tokenizer::EncodeOptions;
use serde::{Deserialize, Serialize};

/// The largest element of a vector that is scaled by it: that of 16-bit integers, less a little.
const LARGEST: f64 = 32760.0;

#[derive(Debug, Deserialize)]
pub(crate) struct Fields {
    model: Option<String>,
    content: Option<Prompts>,
    input: Option<Prompts>,
    embd_normalize: Option<i32>,
}

/// The vector of a text. There is one, as all tokens are pooled.
#[derive(Debug, Serialize)]
pub(crate) struct Embedding {
    index: usize,
    embedding: [Vec<f32>; 1],
}

/// Answers with the vectors of texts.
pub(crate) async fn create(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Json<Vec<Embedding>>, ApiError> {
    let read = |body: &JsonBody| {
        refused::check_embedding(body)?;
        body.read::<Fields>()
    };
    let (Fields { model, content, input, embd_normalize }, held) = body.parse(read).await?;
    let (param, texts) = match (content, input) {
        (Some(_), Some(_)) => {
            let message = "`content` and `input` are mutually exclusive";
            return Err(ApiError::invalid("input", message));
        }
        (Some(texts), None) => ("content", texts.0),
        (None, Some(texts)) => ("input", texts.0),
        (None, None) => return Err(ApiError::invalid("content", "`content` is required")),
    };
    let normalize = embd_normalize.unwrap_or(2);
    if normalize < -1 {
        let message = "`embd_normalize` must be at least -1";
        return Err(ApiError::invalid("embd_normalize", message));
    }
    let most = state.config().limits.texts;
    if texts.is_empty() || texts.len() > most {
        let message = format!("expected 1 to {most} texts, found {}", texts.len());
        return Err(ApiError::invalid(param, message));
    }
    let model = embedding::model(&state, model.as_deref()).await?;
    let options = EncodeOptions { add_special: true, parse_special: true };
    let ids = prompt::encode(&held, &model, texts, options, param).await?;
    let texts = ids.into_iter().map(Prompt::Ids).collect();
    let params = EmbedParams { normalize: false, ..EmbedParams::default() };
    let wanted = Wanted { param, params, priority: None, truncate: None, context: None };
    let embedded = embedding::embed(&state, &held, &model, texts, wanted).await;
    let vectors = embedded?.0.into_iter().enumerate().map(|(index, mut vector)| {
        scale(&mut vector, normalize);
        Embedding { index, embedding: [vector] }
    });
    Ok(Json(vectors.collect()))
}

/// Scales a vector: by its largest element (0), or to the length 1 of the norm `kind`; -1 leaves it.
fn scale(vector: &mut [f32], kind: i32) {
    let sizes = vector.iter().map(|&x| f64::from(x).abs());
    let length = match kind {
        ..=-1 => return,
        0 => sizes.fold(0.0, f64::max) / LARGEST,
        1 => sizes.sum(),
        2 => sizes.map(|x| x * x).sum::<f64>().sqrt(),
        p => {
            // Beside the largest element, so that no power is too large.
            let max = sizes.clone().fold(0.0, f64::max);
            let sum: f64 = sizes.map(|x| (x / max).powi(p)).sum();
            max * sum.powf(1.0 / f64::from(p))
        }
    };
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn norms() {
        let check = |kind: i32, want: [f32; 2]| {
            let mut vector = [3.0, -4.0];
            scale(&mut vector, kind);
            let close =
                vector.iter().zip(want).all(|(x, want)| (x - want).abs() < 1e-6 * want.abs());
            assert!(close, "{kind}: {vector:?} instead of {want:?}");
        };
        check(-1, [3.0, -4.0]);
        check(0, [24570.0, -32760.0]);
        check(1, [3.0 / 7.0, -4.0 / 7.0]);
        check(2, [0.6, -0.8]);
        // The cube root of 27 + 64.
        check(3, [3.0 / 4.497_941_4, -4.0 / 4.497_941_4]);
        for kind in -1..9 {
            let mut zero = [0.0; 3];
            scale(&mut zero, kind);
            assert_eq!(zero, [0.0; 3], "{kind}");
        }
        let mut large = [1e30, 1e30];
        scale(&mut large, 100);
        assert!(large.iter().all(|x| (0.99..1.0).contains(x)), "{large:?}");
    }
}
