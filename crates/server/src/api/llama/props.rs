//! `GET /props`: what clients of llama-server ask of a model and its server, and `/lora-adapters`, of
//! which there are none.

use super::{ModelQuery, loaded, settings};
use crate::api::openai::samplers;
use crate::error::ApiError;
use crate::state::AppState;
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use realizar_runtime::GenerateParams;
use serde_json::{Value, json};

/// The properties of a model, and what requests to it begin from.
pub(crate) async fn get(
    State(state): State<AppState>,
    query: Result<Query<ModelQuery>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let Query(ModelQuery { model }) = query?;
    let model = loaded(&state, model.as_deref())?;
    let info = model.engine.model();
    let tokenizer = model.tokenizer();
    let params = GenerateParams {
        sampling: Some(model.sampling.clone()),
        max_tokens: state.config().limits.output_tokens,
        ..GenerateParams::default()
    };
    let mut defaults = settings::numbers(&params, &model.sampling);
    defaults.insert("samplers".to_owned(), json!(samplers::names(None, &model.sampling)?));
    let text = |id: Option<u32>| match id {
        Some(id) => Ok(tokenizer.token_text(id)?),
        None => Ok::<_, ApiError>(String::new()),
    };
    // A model without a template has no conversations.
    let template = model.chat_template().map_or("", |template| template.source());
    Ok(Json(json!({
        "default_generation_settings": {"n_ctx": info.max_seq_len(), "params": defaults},
        "total_slots": model.engine.max_seqs(),
        "model_alias": model.name,
        "model_path": info.path(),
        "modalities": {"vision": false, "audio": false, "video": false},
        "endpoint_slots": true,
        "endpoint_props": false,
        "endpoint_metrics": true,
        "chat_template": template,
        "bos_token": text(tokenizer.bos())?,
        "eos_token": text(tokenizer.eos())?,
        "build_info": concat!("realizar-", env!("CARGO_PKG_VERSION")),
        "is_sleeping": false,
    })))
}

/// Properties are those of the command line.
pub(crate) async fn set() -> ApiError {
    ApiError::not_supported(
        "properties are set on the command line of this server, not by requests",
    )
}

/// The adapters.
pub(crate) async fn adapters() -> Json<Value> {
    Json(json!([]))
}

/// Adapters cannot be scaled.
pub(crate) async fn scale_adapters() -> ApiError {
    ApiError::not_supported(
        "this server has no LoRA adapters: merge an adapter into its model's file",
    )
}
