//! `POST /models/load` and `/models/unload`, as llama-server's router has them: which models are
//! loaded. Only models that the server was started with can be named; there are no paths.

use crate::error::ApiError;
use crate::http::extract::JsonBody;
use crate::state::AppState;
use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Deserialize)]
pub(crate) struct Fields {
    model: Option<String>,
    /// Whether the answer comes when it is done, and not when it is begun.
    #[serde(default)]
    wait: bool,
}

fn read(body: &JsonBody) -> Result<(String, bool), ApiError> {
    let Fields { model, wait } = body.read()?;
    let model = model.filter(|name| !name.is_empty());
    let model = model.ok_or_else(|| ApiError::invalid("model", "`model` is required"))?;
    Ok((model, wait))
}

/// Loads a model.
pub(crate) async fn load(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let (name, wait) = read(&body)?;
    state.models().load(&name, wait).await?;
    Ok(Json(json!({"success": true})))
}

/// Unloads a model: its requests may end first, within a limited time.
pub(crate) async fn unload(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let (name, wait) = read(&body)?;
    state.models().unload(&name, wait).await?;
    Ok(Json(json!({"success": true})))
}
