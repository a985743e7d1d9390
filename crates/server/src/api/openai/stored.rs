//! Chat completions that requests asked to keep: `GET` and `DELETE /v1/chat/completions/{id}`, and
//! the messages of one. There is no list of them: whoever may use models could read all.

use crate::api::paging::{Order, PageQuery, list};
use crate::error::ApiError;
use crate::http::work;
use crate::state::AppState;
use crate::state::stored::{Entry, Item, Kind, NewEntry, Owner};
use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// What a request says of keeping its completion.
#[derive(Debug)]
pub(crate) struct Kept {
    /// The messages of the request.
    pub(super) messages: Vec<Value>,
    pub(super) metadata: Map<String, Value>,
}

/// Keeps a completion once it is complete.
pub(super) struct Keeper {
    state: AppState,
    owner: Owner,
    kept: Kept,
}

impl Keeper {
    pub(super) fn new(state: &AppState, owner: Owner, kept: Kept) -> Self {
        Self { state: state.clone(), owner, kept }
    }

    /// Keeps a completion with the messages that it answers.
    pub(super) fn keep(self, mut completion: Value) {
        let Self { state, owner, kept: Kept { messages, metadata } } = self;
        completion["metadata"] = json!(metadata);
        let id = completion["id"].as_str().unwrap_or_default().to_owned();
        let messages = messages.into_iter().enumerate().map(|(idx, mut message)| {
            message["id"] = json!(format!("{id}-{idx}"));
            Item::of(&message)
        });
        let (input, kind, body) = (messages.collect(), Kind::Completion, completion.to_string());
        let (output, previous) = (Vec::new(), None);
        state.stored().add(NewEntry { owner, kind, id, body, input, output, previous });
    }
}

/// Answers with a completion that was kept.
pub(crate) async fn get(
    State(state): State<AppState>,
    owner: Owner,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(entry(&state, owner, &id?)?.body()?))
}

/// Drops a completion.
pub(crate) async fn delete(
    State(state): State<AppState>,
    owner: Owner,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(id) = id?;
    match state.stored().remove(owner, Kind::Completion, &id) {
        true => Ok(Json(json!({"id": id, "object": "chat.completion.deleted", "deleted": true}))),
        false => Err(not_stored(&id)),
    }
}

/// Answers with the messages that a completion answers.
pub(crate) async fn messages(
    State(state): State<AppState>,
    owner: Owner,
    id: Result<Path<String>, PathRejection>,
    query: Result<Query<PageQuery>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let (entry, Query(query)) = (entry(&state, owner, &id?)?, query?);
    let page = work::sized(entry.size.n_bytes, move || {
        let messages = entry.new.input.iter().collect();
        let (messages, has_more) = query.page(messages, Order::Asc, |message| &message.id)?;
        let data: Result<Vec<Value>, ApiError> = messages.into_iter().map(Item::value).collect();
        Ok(list(&data?, has_more))
    });
    Ok(Json(page.await?))
}

fn entry(state: &AppState, owner: Owner, id: &str) -> Result<Arc<Entry>, ApiError> {
    state.stored().get(owner, Kind::Completion, id).ok_or_else(|| not_stored(id))
}

fn not_stored(id: &str) -> ApiError {
    ApiError::not_stored("chat completion", id, None)
}
