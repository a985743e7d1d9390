//! `GET /slots`: the sequences that run.

use super::{loaded, settings};
use crate::error::ApiError;
use crate::registry::slots::Sequence;
use crate::state::AppState;
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use realizar_runtime::sampling::SamplingParams;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Deserialize)]
pub(crate) struct SlotsQuery {
    model: Option<String>,
    fail_on_no_slot: Option<String>,
}

/// The slots of sequences, as many as may run at a time. Of one that generates all numbers are returned;
/// one whose prompt is run, or whose embedding is computed, is counted.
pub(crate) async fn get(
    State(state): State<AppState>,
    query: Result<Query<SlotsQuery>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let Query(SlotsQuery { model, fail_on_no_slot }) = query?;
    let model = loaded(&state, model.as_deref())?;
    let (info, n_running) = (model.engine.model(), model.engine.stats().running);
    let mut places = model.slots().list();
    places.resize(places.len().max(model.engine.max_seqs()), None);
    let n_known = places.iter().flatten().count();
    let mut n_more = n_running.saturating_sub(n_known);
    let mut n_busy = 0;
    let mut slots = Vec::with_capacity(places.len());
    for (id, place) in places.iter().enumerate() {
        let is_counted = place.is_none() && n_more > 0;
        n_more -= usize::from(is_counted);
        let is_busy = place.is_some() || is_counted;
        n_busy += usize::from(is_busy);
        let mut slot = json!({
            "id": id,
            "n_ctx": info.max_seq_len(),
            "speculative": model.engine.drafts(),
            "is_processing": is_busy,
        });
        if let (Some(place), Some(slot)) = (place, slot.as_object_mut()) {
            slot.extend(known(place, info.max_seq_len(), &model.sampling));
        }
        slots.push(slot);
    }
    let wants_free = fail_on_no_slot.is_some_and(|value| !value.is_empty() && value != "0");
    if wants_free && n_busy == slots.len() {
        return Err(ApiError::unavailable("no slot is available"));
    }
    Ok(Json(Value::Array(slots)))
}

/// What is known of a sequence that generates.
fn known(
    sequence: &Sequence,
    context: usize,
    own: &SamplingParams,
) -> impl Iterator<Item = (String, Value)> + use<> {
    let Sequence { task, n_cached, n_decoded, has_new_line } = sequence;
    let room = context + 1 - task.n_prompt;
    let most = task.params.max_tokens.map_or(room, |most| most.min(room));
    let next = json!({
        "has_next_token": n_decoded < &most,
        "has_new_line": has_new_line,
        "n_remain": task.params.max_tokens.map_or(json!(-1), |_| json!(most.saturating_sub(*n_decoded))),
        "n_decoded": n_decoded,
    });
    [
        ("id_task", json!(task.id)),
        ("n_prompt_tokens", json!(task.n_prompt)),
        ("n_prompt_tokens_processed", json!(task.n_prompt - n_cached)),
        ("n_prompt_tokens_cache", json!(n_cached)),
        ("params", Value::Object(settings::numbers(&task.params, own))),
        ("next_token", json!([next])),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
}
