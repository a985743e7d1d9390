//! `GET /v1/models`: which models there are, in the shape that routers know from vLLM.

use crate::error::ApiError;
use crate::state::{AppState, ServedModel};
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde::Serialize;

/// The list of models.
#[derive(Debug, Serialize)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<ModelBody>,
}

/// One model.
#[derive(Debug, Serialize)]
pub(crate) struct ModelBody {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    root: String,
    parent: (),
    max_model_len: usize,
    aliases: Vec<String>,
    meta: Meta,
}

/// What llama-server tells of a model.
#[derive(Debug, Serialize)]
struct Meta {
    architecture: String,
    n_params: usize,
    n_vocab: usize,
    n_ctx: usize,
    size: usize,
}

impl From<&ServedModel> for ModelBody {
    fn from(model: &ServedModel) -> Self {
        let info = model.engine.model();
        Self {
            id: model.name.clone(),
            object: "model",
            created: model.created,
            // Routers ask a worker for the dialect that it speaks by this name.
            owned_by: "vllm",
            root: info.path().display().to_string(),
            parent: (),
            max_model_len: info.max_seq_len(),
            aliases: model.aliases.clone(),
            meta: Meta {
                architecture: info.architecture().to_owned(),
                n_params: info.n_params(),
                n_vocab: info.vocab_size(),
                n_ctx: info.max_seq_len(),
                size: info.weight_bytes(),
            },
        }
    }
}

/// All models.
pub(crate) async fn list(State(state): State<AppState>) -> Json<ModelList> {
    let data = state.models().all().iter().map(|model| ModelBody::from(&**model)).collect();
    Json(ModelList { object: "list", data })
}

/// The model with this name or alias.
pub(crate) async fn get(
    State(state): State<AppState>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelBody>, ApiError> {
    let Path(name) = name?;
    let model = state.models().get(&name).ok_or_else(|| ApiError::model_not_found(&name))?;
    Ok(Json(ModelBody::from(&*model)))
}
