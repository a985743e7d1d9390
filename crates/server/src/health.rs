//! Whether the server is there and ready, and which version it is.

use crate::error::ApiError;
use crate::state::AppState;
use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

/// `/live`: the process answers.
pub(crate) async fn live() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

/// `/health`, `/ready`, `/ping`: new requests are taken.
pub(crate) async fn ready(State(state): State<AppState>) -> Result<Json<Value>, ApiError> {
    if state.is_closing() {
        return Err(ApiError::unavailable("the server is shutting down"));
    }
    let models = state.models();
    if !models.is_started() {
        return Err(ApiError::unavailable("models are being loaded"));
    }
    match models.statuses().is_empty() {
        true => Err(ApiError::unavailable("no model is loaded")),
        false => Ok(Json(json!({"status": "ok"}))),
    }
}

/// `/version`.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION"), "engine": "realizar"}))
}
