//! llama-server's own endpoints, beside those of OpenAI's API that it shares.
//!
//! A request has the fields of `/v1/completions`, which has llama-server's too, and those that only
//! these endpoints honour. There are no slots with a cache of their own here: `/slots` shows the
//! sequences that run.

pub(crate) mod answer;
pub(crate) mod completion;
pub(crate) mod embedding;
pub(crate) mod infill;
pub(crate) mod models;
pub(crate) mod prompt;
pub(crate) mod props;
pub(crate) mod settings;
pub(crate) mod slots;
pub(crate) mod tokens;

use crate::error::ApiError;
use crate::registry::served::ServedModel;
use crate::state::AppState;
use serde::Deserialize;
use std::sync::Arc;

/// Paths whose errors have llama-server's shape.
const PATHS: [&str; 8] = [
    "/completion",
    "/completions",
    "/embedding",
    "/embeddings",
    "/infill",
    "/lora-adapters",
    "/props",
    "/slots",
];

/// Whether a path is llama-server's alone.
pub(crate) fn is_llama(path: &str) -> bool {
    PATHS.contains(&path)
}

/// Why a path of llama-server is not there, if it is one.
pub(crate) fn not_offered(path: &str) -> Option<ApiError> {
    path.strip_prefix("/slots/")?;
    let message = "slots are not saved, restored or erased by this server: all requests share one \
                   prefix cache; GET /slots shows the sequences that run";
    Some(ApiError::not_offered(message))
}

/// The model that a GET request is about.
#[derive(Debug, Deserialize)]
pub(crate) struct ModelQuery {
    pub(crate) model: Option<String>,
}

/// The loaded model with this name, or the first one; a GET request loads none.
fn loaded(state: &AppState, name: Option<&str>) -> Result<Arc<ServedModel>, ApiError> {
    if state.is_closing() {
        return Err(ApiError::unavailable("the server is shutting down"));
    }
    let models = state.models();
    match name.filter(|name| !name.is_empty()) {
        None => {
            let first = models.all().into_iter().next();
            first.ok_or_else(|| ApiError::unavailable("no model is loaded"))
        }
        Some(name) => models.get(name).ok_or_else(|| match models.status(name) {
            None => ApiError::model_not_found(name),
            Some(_) => ApiError::unavailable(format!("the model `{name}` is not loaded")),
        }),
    }
}

/// A number with the fewest digits that distinguish it from all other F32 numbers.
fn digits(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}
