//! `POST /v1/responses` and `POST /v1/responses/input_tokens`.
//!
//! What a request refers to, the response that it continues and single items, is found before the
//! request is read, and takes room as if its body had it.

use super::{ResponseHead, ResponseStream, ResponsesRequest, items, read_request, response};
use crate::api::dialects::{self, Dialect};
use crate::api::digits;
use crate::chat::conversation::{EndReason, StreamEvent, TokenUsage};
use crate::chat::delta::ChatDelta;
use crate::error::ApiError;
use crate::http::extract::{Held, JsonBody};
use crate::ids;
use crate::ignored::Api;
use crate::state::AppState;
use crate::state::stored::{Entry, Item, Kind, NewEntry, Owner, from_json};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Parameters of chat completions, and what the responses API calls them.
const NAMES: &[(&str, &str)] = &[
    ("max_completion_tokens", "max_output_tokens"),
    ("messages", "input"),
    ("reasoning_effort", "reasoning.effort"),
    ("response_format", "text.format"),
    ("response_format.json_schema.schema", "text.format.schema"),
    ("thinking", "reasoning.effort"),
    ("verbosity", "text.verbosity"),
];

/// Answers a request.
pub(crate) async fn create(
    State(state): State<AppState>,
    owner: Owner,
    body: JsonBody,
) -> Result<Response, ApiError> {
    let (read, held) = read(&state, owner, body, Purpose::Answer).await?;
    let Read { request, input, previous } = read;
    let ResponsesRequest { conversation, verbosity, tool_names, store, mut echo } = request;
    let stream = conversation.stream;
    let more = more_fields(&echo, verbosity);
    let chat = dialects::read(&state, conversation, held, more, NAMES).await?;
    let sampling = chat.job.params.sampling_or(&chat.job.model.sampling);
    for (key, value) in [("temperature", sampling.temperature), ("top_p", sampling.top_p)] {
        echo.insert(key.to_owned(), json!(digits(value)));
    }
    let (id, created_at) = (ids::new("resp_"), ids::unix_seconds());
    let head = ResponseHead { id, created_at, echo, tool_names };
    let keep = store.then(|| Keep { state: state.clone(), owner, input, previous });
    if stream {
        return dialects::respond(&state, chat, Kept { stream: ResponseStream::new(head), keep });
    }
    let (answer, end, usage) = dialects::collect(&state, chat).await?;
    let response = response(&head, &answer, &end, usage);
    if let Some(keep) = keep {
        keep.keep(&response);
    }
    Ok(Json(response).into_response())
}

/// Answers with the number of tokens that a request's prompt has.
pub(crate) async fn input_tokens(
    State(state): State<AppState>,
    owner: Owner,
    body: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let (Read { request, .. }, held) = read(&state, owner, body, Purpose::Count).await?;
    let ResponsesRequest { conversation, verbosity, echo, .. } = request;
    let more = more_fields(&echo, verbosity);
    let n_tokens = dialects::count(&state, conversation, held, more, NAMES).await?;
    Ok(Json(json!({"object": "response.input_tokens", "input_tokens": n_tokens})))
}

/// Fields of chat completions that a conversation does not have.
fn more_fields(echo: &Map<String, Value>, verbosity: Option<String>) -> Map<String, Value> {
    let mut more = Map::new();
    more.extend(echo.get("truncation").map(|how| ("truncation".to_owned(), how.clone())));
    more.extend(verbosity.map(|how| ("verbosity".to_owned(), json!(how))));
    more
}

/// Why a request is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Answer,
    /// Its tokens are counted, for which it needs neither model nor input.
    Count,
}

/// A request with what it refers to.
struct Read {
    request: ResponsesRequest,
    /// Its own items, if they are to be kept.
    input: Vec<Item>,
    /// What it continues.
    previous: Option<Arc<Entry>>,
}

/// Reads a body, with what it refers to.
async fn read(
    state: &AppState,
    owner: Owner,
    body: JsonBody,
    purpose: Purpose,
) -> Result<(Read, Held), ApiError> {
    let (References { previous, items }, mut body) = body.examine(References::of).await?;
    let previous = previous.map(|id| {
        let found = state.stored().get(owner, Kind::Response, &id);
        found.ok_or_else(|| ApiError::not_stored("response", &id, Some("previous_response_id")))
    });
    let previous = previous.transpose()?;
    let mut found = HashMap::new();
    let mut size = previous.as_ref().map(|entry| entry.size).unwrap_or_default();
    if !items.is_empty() {
        let wanted: HashSet<&str> = items.iter().map(String::as_str).collect();
        let (items, of_items) = state.stored().items(owner, &wanted);
        size.n_bytes = size.n_bytes.saturating_add(of_items.n_bytes);
        size.n_values = size.n_values.saturating_add(of_items.n_values);
        if let Some(id) = wanted.iter().find(|id| !items.contains_key(**id)) {
            return Err(ApiError::not_stored("item", id, Some("input")));
        }
        found = items;
    }
    if size.n_bytes > 0 {
        body.join(size.n_bytes, size.n_values, state).await?;
    }
    let read = move |body: &JsonBody| {
        let mut fields = body.read_request(Api::Responses)?;
        if purpose == Purpose::Count {
            for (key, default) in [("model", json!("")), ("input", json!([]))] {
                if fields.get(key).is_none_or(Value::is_null) {
                    fields.insert(key.to_owned(), default);
                }
            }
        }
        put_in(&mut fields, &found)?;
        let earlier = previous.as_ref().map(|entry| entry.items().map(Item::value).collect());
        let earlier: Vec<Value> = earlier.transpose()?.unwrap_or_default();
        let request = read_request(&fields, &earlier)?;
        let keeps = request.store && purpose == Purpose::Answer;
        let input = keeps.then(|| items::kept(&fields["input"]).iter().map(Item::of).collect());
        Ok(Read { request, input: input.unwrap_or_default(), previous })
    };
    body.parse(read).await
}

/// What a body refers to, by ids.
struct References {
    previous: Option<String>,
    items: Vec<String>,
}

impl References {
    fn of(body: &JsonBody) -> Result<Self, ApiError> {
        let mut names = vec!["previous_response_id"];
        if body.contains("item_reference") {
            names.push("input");
        }
        let fields = body.pick(&names)?;
        let previous = fields.get("previous_response_id").and_then(Value::as_str);
        let items = fields.get("input").and_then(Value::as_array).into_iter().flatten();
        let items = items.filter_map(reference).map(str::to_owned).collect();
        Ok(Self { previous: previous.map(str::to_owned), items })
    }
}

/// The id of the item that an item stands for.
fn reference(item: &Value) -> Option<&str> {
    let is_reference = item["type"] == "item_reference";
    item["id"].as_str().filter(|_| is_reference)
}

/// Puts items in the place of references to them.
fn put_in(
    fields: &mut Map<String, Value>,
    found: &HashMap<String, String>,
) -> Result<(), ApiError> {
    let items = fields.get_mut("input").and_then(Value::as_array_mut).into_iter().flatten();
    for item in items {
        if let Some(json) = reference(item).and_then(|id| found.get(id)) {
            *item = from_json(json)?;
        }
    }
    Ok(())
}

/// What is kept once a response is complete.
struct Keep {
    state: AppState,
    owner: Owner,
    input: Vec<Item>,
    previous: Option<Arc<Entry>>,
}

impl Keep {
    fn keep(self, response: &Value) {
        let Self { state, owner, input, previous } = self;
        let mut body = response.clone();
        let output = std::mem::replace(&mut body["output"], json!([]));
        let output = output.as_array().into_iter().flatten().map(Item::of).collect();
        let id = body["id"].as_str().unwrap_or_default().to_owned();
        let (kind, body) = (Kind::Response, body.to_string());
        state.stored().add(NewEntry { owner, kind, id, body, input, output, previous });
    }
}

/// A stream whose response is kept at its end.
struct Kept {
    stream: ResponseStream,
    keep: Option<Keep>,
}

impl Dialect for Kept {
    fn start(&mut self, _: TokenUsage) -> Vec<StreamEvent> {
        self.stream.start()
    }

    fn delta(&mut self, delta: &ChatDelta) -> Vec<StreamEvent> {
        self.stream.delta(delta)
    }

    fn finish(self, end: &EndReason, usage: TokenUsage) -> Vec<StreamEvent> {
        let events = self.stream.finish(end, usage);
        if let (Some(keep), Some(last)) = (self.keep, events.last()) {
            keep.keep(&last.data["response"]);
        }
        events
    }

    fn fail(self, error: &ApiError) -> Vec<StreamEvent> {
        self.stream.fail("server_error", &error.to_string())
    }
}
