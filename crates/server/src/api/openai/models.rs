//! `GET /v1/models` and `GET /models`: which models there are and which of them are loaded, in the
//! shape that routers know from vLLM, with llama-server's additions and the list that agents read.

use super::agents::{self, AgentModel};
use crate::error::ApiError;
use crate::registry::{LoadState, ModelStatus};
use crate::state::AppState;
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use realizar_runtime::engine::ModelInfo;
use realizar_runtime::sampling::SamplingParams;
use realizar_runtime::{MemoryUse, ModelOutput};
use serde::Serialize;

/// The list of models.
#[derive(Debug, Serialize)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<ModelBody>,
    models: Vec<AgentModel>,
}

/// One model. Fields known only of loaded ones are null otherwise.
#[derive(Debug, Serialize)]
pub(crate) struct ModelBody {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    root: String,
    parent: (),
    max_model_len: Option<usize>,
    aliases: Vec<String>,
    capabilities: [&'static str; 1],
    path: String,
    /// Of its files, as far as they are on this machine.
    format: Option<&'static str>,
    size: Option<u64>,
    status: StatusBody,
    memory: Option<MemoryBody>,
    meta: Option<Meta>,
}

/// Whether it is loaded, in the form of llama-server's router.
#[derive(Debug, Serialize)]
struct StatusBody {
    value: &'static str,
    /// Whether the latest load failed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    failed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The memory that it takes, in bytes.
#[derive(Debug, Serialize)]
struct MemoryBody {
    weights: usize,
    kv: usize,
    scratch: usize,
    total: usize,
}

/// What llama-server reports about a model.
#[derive(Debug, Serialize)]
struct Meta {
    architecture: String,
    n_params: usize,
    n_vocab: usize,
    n_ctx: usize,
    size: usize,
    sampling: Sampling,
}

/// The sampling of a request that asks for nothing else, by the names of a request's fields.
#[derive(Debug, Serialize)]
struct Sampling {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
}

impl From<&SamplingParams> for Sampling {
    fn from(params: &SamplingParams) -> Self {
        Self {
            temperature: params.temperature,
            top_k: params.top_k,
            top_p: params.top_p,
            min_p: params.min_p,
            repetition_penalty: params.repetition_penalty,
            presence_penalty: params.presence_penalty,
            frequency_penalty: params.frequency_penalty,
        }
    }
}

impl From<ModelStatus> for ModelBody {
    fn from(status: ModelStatus) -> Self {
        let value = match status.state {
            LoadState::Unloaded => "unloaded",
            LoadState::Loading => "loading",
            LoadState::Loaded => "loaded",
            LoadState::Unloading => "unloading",
        };
        let memory = status.memory().map(|memory| {
            let MemoryUse { weights, kv, scratch } = memory;
            MemoryBody { weights, kv, scratch, total: memory.total() }
        });
        let ModelStatus { name, aliases, source, output, created, error, model, files, .. } =
            status;
        let capabilities = match output {
            ModelOutput::Logits => ["completion"],
            ModelOutput::Embeddings => ["embedding"],
        };
        let info = model.as_ref().map(|model| model.engine.model());
        let sampling = model.as_ref().map(|model| Sampling::from(&model.sampling));
        let path = info.map(|info| info.path().display().to_string()).or(source);
        let path = path.unwrap_or_default();
        Self {
            id: name,
            object: "model",
            created: model.as_ref().map_or(created, |model| model.created),
            // Routers ask a worker for the dialect that it speaks by this name.
            owned_by: "vllm",
            root: path.clone(),
            parent: (),
            max_model_len: info.map(ModelInfo::max_seq_len),
            aliases,
            capabilities,
            path,
            format: files.as_ref().map(|files| files.format.name()),
            size: files.as_ref().map(|files| files.bytes),
            status: StatusBody { value, failed: error.is_some(), error },
            memory,
            meta: info.zip(sampling).map(|(info, sampling)| Meta {
                architecture: info.architecture().to_owned(),
                n_params: info.n_params(),
                n_vocab: info.vocab_size(),
                n_ctx: info.max_seq_len(),
                size: info.weight_bytes(),
                sampling,
            }),
        }
    }
}

/// All models, loaded or not.
pub(crate) async fn list(State(state): State<AppState>) -> Json<ModelList> {
    let statuses = state.models().statuses();
    let models = agents::models(&statuses);
    let data = statuses.into_iter().map(ModelBody::from).collect();
    Json(ModelList { object: "list", data, models })
}

/// The model with this name or alias.
pub(crate) async fn get(
    State(state): State<AppState>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelBody>, ApiError> {
    let Path(name) = name?;
    let status = state.models().status(&name).ok_or_else(|| ApiError::model_not_found(&name))?;
    Ok(Json(status.into()))
}
