//! What SGLang's routers ask a worker: `/get_load`, `/get_model_info` and `/get_server_info`.

use crate::error::ApiError;
use crate::registry::served::ServedModel;
use crate::state::AppState;
use axum::Json;
use axum::extract::State;
use realizar_runtime::engine::PAGE_LEN;
use serde_json::{Value, json};
use std::sync::Arc;

/// The first model that is loaded; a query loads none.
fn first(state: &AppState) -> Result<Arc<ServedModel>, ApiError> {
    let first = state.models().all().into_iter().next().filter(|_| !state.is_closing());
    first.ok_or_else(|| ApiError::unavailable("no model is loaded"))
}

/// The first model.
pub(crate) async fn model_info(State(state): State<AppState>) -> Result<Json<Value>, ApiError> {
    let model = first(&state)?;
    let info = model.engine.model();
    Ok(Json(json!({
        "model_path": info.path(),
        "tokenizer_path": info.path(),
        "served_model_name": model.name,
        "is_generation": true,
        "model_type": info.architecture(),
        "max_context_length": info.max_seq_len(),
        "vocab_size": info.vocab_size(),
        "preferred_sampling_params": Value::Null,
    })))
}

/// The load of all models together, as that of one rank: a router adds ranks up and compares
/// servers by their tokens. Tokens are those that the key-value cache holds for requests, in whole
/// pages, and those of requests that wait.
pub(crate) async fn load(State(state): State<AppState>) -> Result<Json<Value>, ApiError> {
    first(&state)?;
    let (mut requests, mut waiting, mut tokens) = (0, 0, 0);
    for model in state.models().all() {
        let stats = model.engine.stats();
        requests += stats.running + stats.waiting;
        waiting += stats.waiting;
        tokens += stats.kv_used_pages * PAGE_LEN + stats.waiting_tokens;
    }
    Ok(Json(json!([{
        "dp_rank": 0,
        "num_reqs": requests,
        "num_waiting_reqs": waiting,
        "num_tokens": tokens,
    }])))
}

/// The first model and the load of each.
pub(crate) async fn server_info(State(state): State<AppState>) -> Result<Json<Value>, ApiError> {
    let first = first(&state)?;
    let info = first.engine.model();
    let load = |model: &ServedModel| {
        let stats = model.engine.stats();
        json!({
            "model": model.name,
            "num_running_reqs": stats.running,
            "num_waiting_reqs": stats.waiting,
            "kv_used_pages": stats.kv_used_pages,
            "kv_total_pages": stats.kv_total_pages,
        })
    };
    let models = state.models().all();
    Ok(Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "status": "ready",
        "model_path": info.path(),
        "tokenizer_path": info.path(),
        "served_model_name": first.name,
        "context_length": info.max_seq_len(),
        "internal_states": models.iter().map(|model| load(model)).collect::<Vec<_>>(),
    })))
}
