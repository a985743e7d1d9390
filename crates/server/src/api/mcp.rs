//! `GET /mcp/tools` and `POST /mcp/call`: the tools that the server was given, for its page and other
//! clients that ask their user before each call.

use crate::error::ApiError;
use crate::http::extract::JsonBody;
use crate::state::AppState;
use crate::tool_host::{ToolCallError, ToolOutput};
use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The tools by where they come from, in the form of a chat request's.
pub(crate) async fn tools(State(state): State<AppState>) -> Json<Value> {
    let host = state.config().tool_host.as_ref();
    let sources = host.map(|host| host.sources()).unwrap_or_default();
    let sources = sources.into_iter();
    let servers: Value = sources
        .map(|source| json!({"name": source.name, "tools": source.tools, "error": source.error}))
        .collect();
    Json(json!({"servers": servers}))
}

#[derive(Debug, Deserialize)]
struct Fields {
    name: Option<String>,
    arguments: Option<Map<String, Value>>,
}

/// Calls a tool and waits for what it says.
pub(crate) async fn call(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Json<ToolOutput>, ApiError> {
    let Fields { name, arguments } = body.read()?;
    // A call may take long, and its body takes no memory during that time.
    drop(body);
    let name = name.filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| ApiError::invalid("name", "`name` is required"))?;
    let unknown = || ApiError::invalid("name", format!("unknown tool `{name}`"));
    let host = state.config().tool_host.as_ref().ok_or_else(unknown)?;
    let call = state.tool_calls().run(host.call(&name, arguments.unwrap_or_default())).await;
    let result = call.ok_or_else(|| ApiError::unavailable("the server is shutting down"))?;
    result.map(Json).map_err(|error| match error {
        ToolCallError::Unknown(_) => unknown(),
        ToolCallError::Failed(reason) => ApiError::unavailable(reason),
    })
}
