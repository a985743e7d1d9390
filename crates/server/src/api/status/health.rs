//! Whether the server is there and ready, and which version it is.
//!
//! An engine outlives steps that panic. One that has ended all the same cannot come back, and every
//! request to its model fails: the server is not ready then, and not live either, as only a restart
//! (or an unload and a load of the model) mends it.

use crate::error::ApiError;
use crate::state::AppState;
use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

/// `/live`: the process answers, and no engine has ended by itself.
pub(crate) async fn live(State(state): State<AppState>) -> Result<Json<Value>, ApiError> {
    // At the server's end engines end.
    if !state.is_closing() {
        check_engines(&state)?;
    }
    Ok(Json(json!({"status": "ok"})))
}

/// `/health`, `/ready`, `/ping`: new requests are taken, and not all the models that the server was started with
/// are unable to answer.
pub(crate) async fn ready(State(state): State<AppState>) -> Result<Json<Value>, ApiError> {
    if state.is_closing() {
        return Err(ApiError::unavailable("the server is shutting down"));
    }
    let models = state.models();
    if !models.is_started() {
        return Err(ApiError::unavailable("models are being loaded"));
    }
    if !models.has_loader() && models.statuses().is_empty() {
        return Err(ApiError::unavailable("no model is loaded"));
    }
    check_engines(&state)?;
    match models.defects() {
        None => Ok(Json(json!({"status": "ok"}))),
        Some(defects) => Err(ApiError::unavailable(defects.join("; "))),
    }
}

/// Fails, with their names, if engines of loaded models have ended.
fn check_engines(state: &AppState) -> Result<(), ApiError> {
    let models = state.models().all();
    let ended = models.iter().filter(|model| !model.engine.is_alive());
    let ended: Vec<String> = ended.map(|model| format!("`{}`", model.name)).collect();
    match &ended[..] {
        [] => Ok(()),
        [one] => Err(ApiError::unavailable(format!("the engine of the model {one} has ended"))),
        more => {
            let names = more.join(", ");
            Err(ApiError::unavailable(format!("the engines of the models {names} have ended")))
        }
    }
}

/// `/version`.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION"), "engine": "realizar"}))
}
