//! `GET` and `DELETE /v1/responses/{id}`, and the items of its input.

use crate::api::paging::{Order, PageQuery, list};
use crate::error::ApiError;
use crate::http::work;
use crate::state::AppState;
use crate::state::stored::{Entry, Item, Kind, Owner};
use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// How a response is asked for.
#[derive(Debug, Deserialize)]
pub(crate) struct GetQuery {
    stream: Option<bool>,
}

/// Answers with a response that was kept.
pub(crate) async fn get(
    State(state): State<AppState>,
    owner: Owner,
    id: Result<Path<String>, PathRejection>,
    query: Result<Query<GetQuery>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    if query?.stream == Some(true) {
        let message = "a response that is complete is not streamed again";
        return Err(ApiError::invalid("stream", message));
    }
    let entry = entry(&state, owner, &id?)?;
    let whole = work::sized(entry.size.n_bytes, move || {
        let mut response = entry.body()?;
        response["output"] = entry.new.output.iter().map(Item::value).collect::<Result<_, _>>()?;
        Ok(response)
    });
    Ok(Json(whole.await?))
}

/// Drops a response.
pub(crate) async fn delete(
    State(state): State<AppState>,
    owner: Owner,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(id) = id?;
    match state.stored().remove(owner, Kind::Response, &id) {
        true => Ok(Json(json!({"id": id, "object": "response", "deleted": true}))),
        false => Err(ApiError::not_stored("response", &id, None)),
    }
}

/// Answers with the items that a response was generated from, the newest first unless asked
/// otherwise.
pub(crate) async fn input_items(
    State(state): State<AppState>,
    owner: Owner,
    id: Result<Path<String>, PathRejection>,
    query: Result<Query<PageQuery>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let (entry, Query(query)) = (entry(&state, owner, &id?)?, query?);
    let list = work::sized(entry.size.n_bytes, move || {
        let items = entry.input().collect();
        let (items, has_more) = query.page(items, Order::Desc, |item| &item.id)?;
        let data = items.into_iter().map(Item::value).collect::<Result<Vec<Value>, _>>()?;
        Ok(list(&data, has_more))
    });
    Ok(Json(list.await?))
}

fn entry(state: &AppState, owner: Owner, id: &str) -> Result<Arc<Entry>, ApiError> {
    let found = state.stored().get(owner, Kind::Response, id);
    found.ok_or_else(|| ApiError::not_stored("response", id, None))
}
