//! Errors: [`Error`] of the server itself, [`ApiError`] of one request.
//!
//! Every answer that is not a success has the shape of OpenAI's errors; where Anthropic's or Ollama's is due,
//! [`dialects`](crate::api::dialects) writes it from the [`ApiError`] that the answer carries. Which status a failure has
//! is decided in [`ApiError`] alone, in the table of its kinds.

use crate::fields::{self, InvalidRequest};
use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use realizar_runtime::engine::SubmitError;
use realizar_runtime::{ByteSize, sampling, tokenizer};
use serde_json::{Value, json};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What keeps the server from running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// Host and port.
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// The loop that accepts connections failed.
    #[error("the server stopped: {0}")]
    Listen(#[source] io::Error),
    /// A file for TLS cannot be used.
    #[error("TLS: {}: {reason}", path.display())]
    Tls {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A setting has a value that cannot be used.
    #[error("{setting}: {reason}")]
    Config {
        /// The setting.
        setting: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// Two models have one name.
    #[error("two models have the name `{name}`")]
    Name {
        /// The name or alias.
        name: String,
    },
}

/// Why a model is unavailable, or why its state cannot be changed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No model has this name.
    #[error("the model `{name}` does not exist")]
    NotFound {
        /// The name that was requested.
        name: String,
    },
    /// There are no models at all.
    #[error("no model is loaded")]
    NoModels,
    /// The model is not loaded, and not by a request.
    #[error("the model `{name}` is not loaded")]
    NotLoaded {
        /// The model.
        name: String,
    },
    /// The model is loaded already.
    #[error("the model `{name}` is already loaded")]
    Loaded {
        /// The model.
        name: String,
    },
    /// The model came loaded, and nothing could load it again.
    #[error("the model `{name}` cannot be loaded again, so it is not unloaded")]
    NoSource {
        /// The model.
        name: String,
    },
    /// The model takes more memory than all models may.
    #[error(
        "the model `{name}` takes {} of memory; all models together may take {}",
        ByteSize::from(*needed),
        ByteSize::from(*limit)
    )]
    TooLarge {
        /// The model.
        name: String,
        /// Bytes that it takes.
        needed: usize,
        /// Bytes that models may take.
        limit: usize,
    },
    /// There was no room beside models that are in use.
    #[error("there is no room for the model `{name}` beside those that are in use")]
    Busy {
        /// The model.
        name: String,
    },
    /// The loader failed.
    #[error("the model `{name}` cannot be loaded: {reason}")]
    Failed {
        /// The model.
        name: String,
        /// The loader's error with its causes.
        reason: String,
        /// The loader's error.
        error: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// The model was unloaded while it was being loaded.
    #[error("the model `{name}` was unloaded while it was being loaded")]
    Cancelled {
        /// The model.
        name: String,
    },
    /// The server is about to end.
    #[error("the server is shutting down")]
    Closed,
}

impl LoadError {
    /// Whether the model itself is the reason, and not what else the server is doing.
    pub(crate) fn is_failure(&self) -> bool {
        matches!(self, Self::Failed { .. } | Self::TooLarge { .. })
    }
}

/// Bytes of a message; a longer one is cut.
const MAX_MESSAGE: usize = 2048;

/// When to come back if models in use leave no room.
const RETRY_ROOM: Duration = Duration::from_secs(5);

/// Why a request is not answered as asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    kind: Kind,
    message: String,
    param: Option<String>,
    retry_after: Option<Duration>,
    /// Of a prompt that does not fit.
    context: Option<Context>,
}

/// A prompt and the context that it should fit into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Context {
    n_prompt_tokens: usize,
    n_ctx: usize,
}

/// What kind of failure it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Invalid,
    Unsupported,
    ContextLength,
    Unauthorized,
    Forbidden,
    ModelNotFound,
    NotStored,
    ModelNotLoaded,
    UnknownUrl,
    Method,
    BodyTimeout,
    TooLarge,
    MediaType,
    Encoding,
    QueueFull,
    SlowReader,
    Internal,
    LoadFailed,
    NotSupported,
    Unavailable,
    Connections,
    Bodies,
    Timeout,
}

impl Kind {
    /// Status, type and code.
    fn row(self) -> (StatusCode, &'static str, Option<&'static str>) {
        use StatusCode as S;
        const REQUEST: &str = "invalid_request_error";
        const SERVER: &str = "server_error";
        match self {
            Self::Invalid => (S::BAD_REQUEST, REQUEST, None),
            Self::Unsupported => (S::BAD_REQUEST, REQUEST, Some("unsupported_parameter")),
            Self::ContextLength => (S::BAD_REQUEST, REQUEST, Some("context_length_exceeded")),
            Self::Unauthorized => (S::UNAUTHORIZED, REQUEST, Some("invalid_api_key")),
            Self::Forbidden => (S::FORBIDDEN, REQUEST, Some("forbidden")),
            Self::ModelNotLoaded => (S::BAD_REQUEST, REQUEST, Some("model_not_loaded")),
            Self::ModelNotFound => (S::NOT_FOUND, REQUEST, Some("model_not_found")),
            Self::NotStored => (S::NOT_FOUND, REQUEST, Some("not_stored")),
            Self::UnknownUrl => (S::NOT_FOUND, REQUEST, Some("unknown_url")),
            Self::Method => (S::METHOD_NOT_ALLOWED, REQUEST, Some("method_not_allowed")),
            Self::BodyTimeout => (S::REQUEST_TIMEOUT, REQUEST, Some("body_timeout")),
            Self::SlowReader => (S::REQUEST_TIMEOUT, REQUEST, Some("slow_reader")),
            Self::TooLarge => (S::PAYLOAD_TOO_LARGE, REQUEST, Some("body_too_large")),
            Self::MediaType => (S::UNSUPPORTED_MEDIA_TYPE, REQUEST, Some("unsupported_media_type")),
            Self::Encoding => {
                (S::UNSUPPORTED_MEDIA_TYPE, REQUEST, Some("unsupported_content_encoding"))
            }
            Self::QueueFull => {
                (S::TOO_MANY_REQUESTS, "rate_limit_error", Some("rate_limit_exceeded"))
            }
            Self::Internal => (S::INTERNAL_SERVER_ERROR, SERVER, None),
            Self::LoadFailed => (S::INTERNAL_SERVER_ERROR, SERVER, Some("model_load_failed")),
            Self::NotSupported => (S::NOT_IMPLEMENTED, REQUEST, Some("not_supported")),
            Self::Unavailable => (S::SERVICE_UNAVAILABLE, SERVER, Some("unavailable")),
            Self::Connections => (S::SERVICE_UNAVAILABLE, SERVER, Some("too_many_connections")),
            Self::Bodies => (S::SERVICE_UNAVAILABLE, SERVER, Some("too_many_bytes")),
            Self::Timeout => (S::GATEWAY_TIMEOUT, SERVER, Some("timeout")),
        }
    }
}

impl ApiError {
    fn new(kind: Kind, message: impl Into<String>) -> Self {
        let message = shortened(message.into());
        Self { kind, message, param: None, retry_after: None, context: None }
    }

    fn of_param(kind: Kind, param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(shortened(param.into())), ..Self::new(kind, message) }
    }

    /// A parameter has a value that it cannot have.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::of_param(Kind::Invalid, param, message)
    }

    /// The request as a whole is malformed.
    pub fn malformed(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    /// A parameter is known and cannot be honoured with the value that was found; others are
    /// accepted.
    pub(crate) fn unsupported(param: impl Into<String>, found: &Value, accepted: &str) -> Self {
        let (param, found) = (param.into(), fields::show(found));
        let message = format!("`{param}`: {found} is not supported; accepted: {accepted}");
        Self::of_param(Kind::Unsupported, param, message)
    }

    /// A prompt, or it and its answer, do not fit into the context.
    ///
    /// The message begins as OpenAI's does, by which LiteLLM and others know this error; the
    /// numbers have llama-server's names.
    pub fn context_length(param: &str, n_prompt_tokens: usize, n_ctx: usize) -> Self {
        let context = Some(Context { n_prompt_tokens, n_ctx });
        let error = Self { context, ..Self::of_param(Kind::ContextLength, param, "") };
        error.because(format!("but the prompt has {n_prompt_tokens}"))
    }

    /// Whether something did not fit into the context.
    pub(crate) fn is_context_length(&self) -> bool {
        self.context.is_some()
    }

    /// Gives a different reason why something does not fit into the context.
    #[must_use]
    pub(crate) fn because(mut self, reason: impl fmt::Display) -> Self {
        if let Some(Context { n_ctx, .. }) = self.context {
            self.message =
                format!("This model's maximum context length is {n_ctx} tokens, {reason}");
        }
        self
    }

    /// No key, or a wrong one.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(Kind::Unauthorized, message)
    }

    /// The request may not do this, whatever key it shows.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(Kind::Forbidden, message)
    }

    /// No model has this name.
    pub fn model_not_found(name: &str) -> Self {
        Self::of_param(Kind::ModelNotFound, "model", format!("the model `{name}` does not exist"))
    }

    /// No model has this name, in these words.
    pub(crate) fn no_such_model(message: impl Into<String>) -> Self {
        Self::of_param(Kind::ModelNotFound, "model", message)
    }

    /// The API has this, and the server does not.
    pub(crate) fn not_offered(message: impl Into<String>) -> Self {
        Self::new(Kind::UnknownUrl, message)
    }

    /// The server or the model does not have this, whatever the request says.
    pub(crate) fn not_supported(message: impl Into<String>) -> Self {
        Self::new(Kind::NotSupported, message)
    }

    /// Nothing is at this place.
    pub fn unknown_url(method: &str, path: &str) -> Self {
        Self::new(Kind::UnknownUrl, format!("unknown URL ({method} {path})"))
    }

    /// There is something at this place, but not with this method.
    pub fn method_not_allowed(method: &str, path: &str) -> Self {
        Self::new(Kind::Method, format!("{path} does not allow {method}"))
    }

    /// The body, or more of it, did not arrive in time.
    pub fn body_timeout(problem: impl Into<String>) -> Self {
        Self::new(Kind::BodyTimeout, problem)
    }

    /// The body is longer than allowed.
    pub fn too_large(limit: usize) -> Self {
        let limit = ByteSize::from(limit);
        Self::new(Kind::TooLarge, format!("the body is larger than the {limit} allowed"))
    }

    /// The body is declared to be something other than JSON.
    pub fn media_type(found: Option<&str>) -> Self {
        let found = found.map_or("none".to_owned(), |found| format!("`{found}`"));
        let message = format!("expected the content type `application/json`, found {found}");
        Self::new(Kind::MediaType, message)
    }

    /// The body is compressed.
    pub fn content_encoding(found: &str) -> Self {
        let message = format!("the body has the content encoding `{found}`; send it uncompressed");
        Self::new(Kind::Encoding, message)
    }

    /// The server failed; the reason is logged and told.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Kind::Internal, message)
    }

    /// The server takes no requests now.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Kind::Unavailable, message)
    }

    /// As many requests wait for something as may.
    pub(crate) fn queue_full(message: impl Into<String>) -> Self {
        Self { retry_after: Some(Duration::from_secs(1)), ..Self::new(Kind::QueueFull, message) }
    }

    /// As many connections are open as may be.
    pub(crate) fn too_many_connections() -> Self {
        let message = "too many connections: this server limits their total (`--max-connections`) \
                       and their number per address (`--max-connections-per-address`, which all \
                       clients of a proxy share unless `--trusted-proxy` names it); try again";
        Self { retry_after: Some(Duration::from_secs(1)), ..Self::new(Kind::Connections, message) }
    }

    /// Bodies that are worked on take all the room that there is for them.
    pub(crate) fn too_many_bytes() -> Self {
        let message = "the bodies of other requests take all the memory that this server reserves \
                       for bodies; try again";
        Self { retry_after: Some(Duration::from_secs(1)), ..Self::new(Kind::Bodies, message) }
    }

    /// The body has more values than allowed.
    pub(crate) fn too_many_values(limit: usize) -> Self {
        let message = format!("the body has more JSON values than the {limit} allowed");
        Self::new(Kind::TooLarge, message)
    }

    /// The body and what it refers to of earlier requests are together more than `limit`.
    pub(crate) fn stored_too_large(limit: impl fmt::Display) -> Self {
        let message = format!(
            "the body and the stored items that it refers to exceed the {limit} allowed together"
        );
        Self::new(Kind::TooLarge, message)
    }

    /// Nothing that was stored has this id: a response, an item or a chat completion.
    pub(crate) fn not_stored(what: &str, id: &str, param: Option<&str>) -> Self {
        let message = format!(
            "no stored {what} has the id `{id}`: it is unknown, was not stored, was deleted, or was \
             dropped for newer ones"
        );
        Self { param: param.map(str::to_owned), ..Self::new(Kind::NotStored, message) }
    }

    /// The client does not read its stream, of which more than `limit` bytes wait for it.
    pub(crate) fn slow_reader(limit: usize) -> Self {
        let limit = ByteSize::from(limit);
        let message =
            format!("the client reads too slowly: more than {limit} of this stream were waiting");
        Self::new(Kind::SlowReader, message)
    }

    /// The answer took too long.
    pub fn timeout(limit: Duration) -> Self {
        Self::new(Kind::Timeout, format!("the request timed out after {limit:?}"))
    }

    /// The error in an API that has other names for parameters: pairs of this one's and its own.
    pub(crate) fn renamed(mut self, names: &[(&str, &str)]) -> Self {
        let name = names.iter().find(|(name, _)| self.param.as_deref() == Some(name));
        if let Some((name, own)) = name {
            self.message = self.message.replace(&format!("`{name}`"), &format!("`{own}`"));
            self.param = Some((*own).to_owned());
        }
        self
    }

    /// The status of the answer.
    pub fn status(&self) -> StatusCode {
        self.kind.row().0
    }

    /// Its code, or its type where it has none.
    pub(crate) fn code(&self) -> &'static str {
        let (_, kind, code) = self.kind.row();
        code.unwrap_or(kind)
    }

    /// The body of the answer, which is also what a stream that fails says.
    pub fn body(&self) -> Value {
        let (_, kind, code) = self.kind.row();
        let Self { message, param, .. } = self;
        let mut error = json!({"message": message, "type": kind, "param": param, "code": code});
        if let Some(Context { n_prompt_tokens, n_ctx }) = self.context {
            error["n_prompt_tokens"] = json!(n_prompt_tokens);
            error["n_ctx"] = json!(n_ctx);
        }
        json!({"error": error})
    }

    /// The body in the shape of llama-server's errors, with the parameter.
    pub(crate) fn llama_body(&self) -> Value {
        let mut body = self.body();
        let kind = match (self.kind, self.status().as_u16()) {
            (Kind::ContextLength, _) => "exceed_context_size_error",
            (_, 401) => "authentication_error",
            (_, 403) => "permission_error",
            (_, 404) => "not_found_error",
            (_, 501) => "not_supported_error",
            (_, 503) => "unavailable_error",
            (_, 500..) => "server_error",
            _ => "invalid_request_error",
        };
        body["error"]["type"] = json!(kind);
        body["error"]["code"] = json!(self.status().as_u16());
        body
    }

    /// The body in the shape of Ollama's errors.
    pub(crate) fn ollama_body(&self) -> Value {
        json!({"error": self.message})
    }
}

/// A text of at most [`MAX_MESSAGE`] bytes: what it repeats of a request may be as long as that.
fn shortened(mut text: String) -> String {
    if text.len() > MAX_MESSAGE {
        text.truncate(text.floor_char_boundary(MAX_MESSAGE));
        text.shrink_to_fit();
        text.push('…');
    }
    text
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        // That the server is full is logged once, where connections are counted.
        let is_told = [Kind::Connections, Kind::NotSupported].contains(&self.kind);
        if self.status().is_server_error() && !is_told {
            tracing::error!(status = self.status().as_u16(), "{}", self.message);
        }
        let mut response = (self.status(), Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let Some(after) = self.retry_after {
            // Whole seconds, and never at once.
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        if self.kind == Kind::Encoding {
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        if self.kind == Kind::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // An API with a shape of its own writes the error again.
        response.extensions_mut().insert(self);
        response
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::QueueFull { retry_after, .. } => Self {
                retry_after: Some(retry_after),
                ..Self::new(Kind::QueueFull, error.to_string())
            },
            SubmitError::Closed => Self::unavailable(error.to_string()),
            SubmitError::Invalid(error) => error.into(),
            error => Self::internal(error.to_string()),
        }
    }
}

impl From<LoadError> for ApiError {
    fn from(error: LoadError) -> Self {
        use LoadError as E;
        let text = error.to_string();
        match error {
            E::NotFound { name } => Self::model_not_found(&name),
            E::NotLoaded { .. } => Self::of_param(Kind::ModelNotLoaded, "model", text),
            E::Loaded { .. } | E::NoSource { .. } => Self::invalid("model", text),
            E::TooLarge { .. } | E::Failed { .. } => {
                Self::of_param(Kind::LoadFailed, "model", text)
            }
            E::Busy { .. } => Self { retry_after: Some(RETRY_ROOM), ..Self::unavailable(text) },
            E::NoModels | E::Cancelled { .. } | E::Closed => Self::unavailable(text),
        }
    }
}

impl From<sampling::Error> for ApiError {
    fn from(error: sampling::Error) -> Self {
        let param = match &error {
            sampling::Error::Parameter { name, .. } => name,
            sampling::Error::BiasId { .. } => "logit_bias",
            sampling::Error::EmptyStop { .. } => "stop",
            sampling::Error::NoToken => return Self::malformed(error.to_string()),
            _ => return Self::internal(error.to_string()),
        };
        Self::invalid(param, error.to_string())
    }
}

impl From<InvalidRequest> for ApiError {
    fn from(error: InvalidRequest) -> Self {
        let kind = match &error {
            InvalidRequest::Unsupported { .. } => Kind::Unsupported,
            InvalidRequest::Missing { .. } | InvalidRequest::Value { .. } => Kind::Invalid,
        };
        Self::of_param(kind, error.param(), error.to_string())
    }
}

impl From<PathRejection> for ApiError {
    fn from(error: PathRejection) -> Self {
        Self::malformed(error.body_text())
    }
}

impl From<QueryRejection> for ApiError {
    fn from(error: QueryRejection) -> Self {
        Self::malformed(error.body_text())
    }
}

impl From<tokenizer::Error> for ApiError {
    fn from(error: tokenizer::Error) -> Self {
        realizar_runtime::Error::from(error).into()
    }
}

impl From<realizar_runtime::Error> for ApiError {
    fn from(error: realizar_runtime::Error) -> Self {
        use realizar_runtime::Error as E;
        match error {
            E::Sampling(error) => error.into(),
            E::Text(tokenizer::Error::Broken { .. }) => Self::internal(error.to_string()),
            E::Text(_) | E::Request(_) => Self::malformed(error.to_string()),
            E::PromptTooLong { n_tokens, max } => Self::context_length("prompt", n_tokens, max),
            E::Render(_) => Self::invalid("messages", error.to_string()),
            E::Constrain(_) => Self::malformed(error.to_string()),
            E::Ended => Self::unavailable(error.to_string()),
            error => Self::internal(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_status_and_shape() {
        let check = |error: ApiError, status: u16, kind: &str, param: Value, code: Value| {
            let body = error.body();
            assert_eq!(body["error"]["message"], error.to_string());
            assert_eq!(body["error"]["type"], kind, "{error}");
            assert_eq!(body["error"]["param"], param, "{error}");
            assert_eq!(body["error"]["code"], code, "{error}");
            assert_eq!(error.into_response().status().as_u16(), status);
        };
        let null = Value::Null;
        let request = "invalid_request_error";
        check(ApiError::invalid("n", "x"), 400, request, json!("n"), null.clone());
        check(ApiError::malformed("x"), 400, request, null.clone(), null.clone());
        let code = json!("unsupported_parameter");
        let error = ApiError::unsupported("audio", &json!({"voice": "x"}), "nothing");
        let words = "`audio`: {\"voice\":\"x\"} is not supported; accepted: nothing";
        assert_eq!(error.to_string(), words);
        check(error, 400, request, json!("audio"), code);
        let code = json!("context_length_exceeded");
        check(ApiError::context_length("prompt", 9, 8), 400, request, json!("prompt"), code);
        check(ApiError::unauthorized("x"), 401, request, null.clone(), json!("invalid_api_key"));
        let code = json!("model_not_found");
        check(ApiError::model_not_found("m"), 404, request, json!("model"), code);
        let error = ApiError::not_stored("response", "r", Some("previous_response_id"));
        check(error, 404, request, json!("previous_response_id"), json!("not_stored"));
        check(ApiError::too_large(9), 413, request, null.clone(), json!("body_too_large"));
        let code = json!("unsupported_media_type");
        check(ApiError::media_type(None), 415, request, null.clone(), code);
        let code = json!("unsupported_content_encoding");
        check(ApiError::content_encoding("gzip"), 415, request, null.clone(), code);
        check(ApiError::internal("x"), 500, "server_error", null.clone(), null.clone());
        check(ApiError::unavailable("x"), 503, "server_error", null.clone(), json!("unavailable"));
        let error = ApiError::too_many_connections();
        check(error, 503, "server_error", null.clone(), json!("too_many_connections"));
        check(ApiError::slow_reader(9), 408, request, null.clone(), json!("slow_reader"));
        let from = ApiError::from(sampling::Error::EmptyStop { idx: 0 });
        check(from, 400, request, json!("stop"), null.clone());
        let from = ApiError::from(realizar_runtime::Error::Ended);
        check(from, 503, "server_error", null.clone(), json!("unavailable"));
        let from = ApiError::from(realizar_runtime::Error::Step("no".to_owned()));
        check(from, 500, "server_error", null.clone(), null.clone());
        let from = ApiError::from(realizar_runtime::Error::Request("no".to_owned()));
        check(from, 400, request, null.clone(), Value::Null);
        // A grammar that exceeds its limits in the middle of an answer is the request's fault.
        let follow = realizar_runtime::constrain::Error::Follow("no".to_owned());
        check(realizar_runtime::Error::from(follow).into(), 400, request, null, Value::Null);
    }

    #[test]
    fn what_does_not_fit_is_told_in_words_that_clients_know() {
        let check = |error: ApiError, message: &str| {
            let body = error.body();
            assert_eq!(body["error"]["message"], message);
            assert_eq!(
                (&body["error"]["n_prompt_tokens"], &body["error"]["n_ctx"]),
                (&json!(9), &json!(8))
            );
        };
        let error = ApiError::context_length("prompt", 9, 8);
        check(
            error.clone(),
            "This model's maximum context length is 8 tokens, but the prompt has 9",
        );
        check(error.because("x"), "This model's maximum context length is 8 tokens, x");
        let error = realizar_runtime::Error::PromptTooLong { n_tokens: 9, max: 8 };
        check(
            error.into(),
            "This model's maximum context length is 8 tokens, but the prompt has 9",
        );
    }

    #[test]
    fn llama_server_has_types_of_its_own() {
        let check = |error: ApiError, status: u16, kind: &str| {
            let (text, body) = (error.to_string(), error.llama_body());
            assert_eq!(body["error"]["code"], status);
            assert_eq!(body["error"]["type"], kind);
            assert_eq!(body["error"]["message"], text);
        };
        check(ApiError::invalid("n", "x"), 400, "invalid_request_error");
        check(ApiError::context_length("prompt", 9, 8), 400, "exceed_context_size_error");
        assert_eq!(ApiError::context_length("prompt", 9, 8).llama_body()["error"]["n_ctx"], 8);
        check(ApiError::unauthorized("x"), 401, "authentication_error");
        check(ApiError::forbidden("x"), 403, "permission_error");
        check(ApiError::model_not_found("m"), 404, "not_found_error");
        check(ApiError::too_large(9), 413, "invalid_request_error");
        check(ApiError::internal("x"), 500, "server_error");
        check(ApiError::not_supported("x"), 501, "not_supported_error");
        check(ApiError::unavailable("x"), 503, "unavailable_error");
        check(ApiError::timeout(Duration::from_secs(1)), 504, "server_error");
    }

    #[test]
    fn a_body_is_wanted_as_it_is() {
        let response = ApiError::content_encoding("gzip").into_response();
        assert_eq!(response.headers()[header::ACCEPT_ENCODING], "identity");
        let response = ApiError::media_type(None).into_response();
        assert!(!response.headers().contains_key(header::ACCEPT_ENCODING));
    }

    #[test]
    fn loads_that_fail_say_whose_fault_it_is() {
        let name = || "m".to_owned();
        let check = |error: LoadError, status: u16, code: Value| {
            let text = error.to_string();
            let error = ApiError::from(error);
            assert_eq!((error.status().as_u16(), &error.body()["error"]["code"]), (status, &code));
            assert_eq!(error.to_string(), text);
        };
        check(LoadError::NotFound { name: name() }, 404, json!("model_not_found"));
        check(LoadError::NotLoaded { name: name() }, 400, json!("model_not_loaded"));
        check(LoadError::Loaded { name: name() }, 400, Value::Null);
        let too_large = LoadError::TooLarge { name: name(), needed: 2, limit: 1 };
        let text = "the model `m` takes 2 B of memory; all models together may take 1 B";
        assert_eq!(too_large.to_string(), text);
        check(too_large, 500, json!("model_load_failed"));
        check(LoadError::Closed, 503, json!("unavailable"));
        let busy = ApiError::from(LoadError::Busy { name: name() }).into_response();
        assert_eq!(
            (busy.status().as_u16(), &busy.headers()[header::RETRY_AFTER]),
            (503, &"5".parse().unwrap())
        );
    }

    #[test]
    fn parameters_have_the_names_of_their_api() {
        let names = [("stop", "stop_sequences")];
        let own = ApiError::invalid("stop", "`stop` is wrong").renamed(&names);
        assert_eq!(own, ApiError::invalid("stop_sequences", "`stop_sequences` is wrong"));
        let other = ApiError::invalid("stops", "`stop` is wrong");
        assert_eq!(other.clone().renamed(&names), other);
    }

    #[test]
    fn a_full_queue_says_when_to_come_back() {
        for (millis, want) in [(0, "1"), (900, "1"), (1500, "2"), (7000, "7")] {
            let retry_after = Duration::from_millis(millis);
            let error = ApiError::from(SubmitError::QueueFull { waiting: 3, retry_after });
            let response = error.into_response();
            assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(response.headers()[header::RETRY_AFTER], want);
        }
        let error = ApiError::from(SubmitError::Closed);
        assert_eq!(error.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
