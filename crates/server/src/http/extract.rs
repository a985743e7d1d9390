//! The body of a request: its arrival, its size, its type, and its JSON.

use crate::error::ApiError;
use crate::http::members::{Members, TooManyValues};
use crate::http::peers::Peer;
use crate::http::work;
use crate::ignored::{self, Api, Logged};
use crate::state::AppState;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use futures_util::StreamExt as _;
use realizar_runtime::ByteSize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The room that a value takes: bytes of memory, beside those of its text.
const VALUE_BYTES: usize = 256;

/// A JSON body that has arrived. It can be read as several types, each of which takes the fields
/// that it knows.
#[derive(Debug)]
pub(crate) struct JsonBody {
    text: Vec<u8>,
    /// None if the text is not an object, which is an error that the parser words.
    members: Option<Members>,
    max_values: usize,
    held: Held,
    /// What was logged on its connection.
    logged: Logged,
}

/// The room that a request takes among all that are worked on, from the arrival of its body until
/// its prompts are with the engine.
#[derive(Debug)]
pub(crate) struct Held {
    n_bytes: usize,
    /// The part of the room for all bodies.
    permit: Option<OwnedSemaphorePermit>,
    /// The address whose share it counts to, where that is known, and the part of the share.
    client: Option<IpAddr>,
    share: Option<OwnedSemaphorePermit>,
    give_back_memory: Option<fn()>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(give_back) = self.give_back_memory.filter(|_| self.n_bytes > work::SMALL) {
            work::give_back_memory(give_back);
        }
    }
}

impl Held {
    /// Runs what may take long, for the request that has this room.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        work::sized(self.n_bytes, work).await
    }

    /// Takes room for a body of `n_bytes`. Small ones need none: their number is that of
    /// connections.
    async fn grow(&mut self, n_bytes: usize, state: &AppState) -> Result<(), ApiError> {
        if n_bytes <= work::SMALL {
            return Ok(());
        }
        let longest = state.config().room_timeout;
        // The share first, so that what waits for it takes no room from others.
        if let Some(client) = self.client {
            let shares = state.shares();
            take(&mut self.share, &shares.of(client), n_bytes.min(shares.n_bytes()), longest)
                .await?;
        }
        take(&mut self.permit, state.bodies(), n_bytes.min(state.room()), longest).await
    }
}

/// Makes a permit of a semaphore one for `n_bytes`, unless it takes too long.
async fn take(
    permit: &mut Option<OwnedSemaphorePermit>,
    from: &Arc<Semaphore>,
    n_bytes: usize,
    longest: Duration,
) -> Result<(), ApiError> {
    let has = permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
    if n_bytes <= has {
        return Ok(());
    }
    let more = u32::try_from(n_bytes - has).map_err(|_| ApiError::too_many_bytes())?;
    match tokio::time::timeout(longest, from.clone().acquire_many_owned(more)).await {
        Ok(Ok(more)) => match permit {
            None => *permit = Some(more),
            Some(permit) => permit.merge(more),
        },
        Ok(Err(_)) | Err(_) => return Err(ApiError::too_many_bytes()),
    }
    Ok(())
}

impl JsonBody {
    /// A body that has arrived whole.
    fn new(text: Vec<u8>, max_values: usize, held: Held) -> Result<Self, ApiError> {
        let members = Members::split(&text, max_values);
        let members = members.map_err(|TooManyValues| ApiError::too_many_values(max_values))?;
        Ok(Self { text, members, max_values, held, logged: Logged::default() })
    }

    /// A body with this text, that of a test.
    #[cfg(test)]
    pub(crate) fn from_text(text: &str) -> Self {
        let (client, share, permit) = (None, None, None);
        let held = Held { n_bytes: 0, permit, client, share, give_back_memory: None };
        Self::new(text.as_bytes().to_vec(), 1000, held).expect("few values")
    }

    /// The body as a `T`; an error names the field.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        let Some(members) = &self.members else {
            let mut json = serde_json::Deserializer::from_slice(&self.text);
            let value =
                serde_path_to_error::deserialize(&mut json).map_err(|error| in_words(&error))?;
            json.end().map_err(|error| ApiError::malformed(error.to_string()))?;
            return Ok(value);
        };
        let value = serde_path_to_error::deserialize(members.of(&self.text));
        value.map_err(|error| in_words(&error))
    }

    /// The body as an object of values.
    pub(crate) fn read_all(&self) -> Result<Map<String, Value>, ApiError> {
        let n_values = self.members.as_ref().map_or(0, Members::n_values);
        if n_values > self.max_values {
            return Err(ApiError::too_many_values(self.max_values));
        }
        self.read()
    }

    /// The body of a request of this API as an object of values. What of it is left out or ignored
    /// is logged.
    pub(crate) fn read_request(&self, api: Api) -> Result<Map<String, Value>, ApiError> {
        let body = self.read_all()?;
        self.logged.log(api, &body);
        Ok(body)
    }

    /// Logs what is left out or ignored of a body that is read as several types.
    pub(crate) fn log_ignored(&self, api: Api) -> Result<(), ApiError> {
        self.logged.log(api, &self.pick(&ignored::members(api))?);
        Ok(())
    }

    /// The fields with these names, as values.
    pub(crate) fn pick(&self, names: &[&str]) -> Result<Map<String, Value>, ApiError> {
        match &self.members {
            Some(members) => members
                .pick(&self.text, names)
                .map_err(|error| ApiError::malformed(error.to_string())),
            None => self.read(),
        }
    }

    /// Takes room for what a request adds to its body from elsewhere, as if it were a part of it.
    pub(crate) async fn join(
        &mut self,
        n_bytes: usize,
        n_values: usize,
        state: &AppState,
    ) -> Result<(), ApiError> {
        let limits = &state.config().limits;
        let n_bytes = self.held.n_bytes.saturating_add(n_bytes);
        if n_bytes > limits.body_bytes {
            return Err(ApiError::stored_too_large(ByteSize::from(limits.body_bytes)));
        }
        let own = self.members.as_ref().map_or(0, Members::n_values);
        let n_values = own.saturating_add(n_values);
        if n_values > self.max_values {
            let limit = format_args!("{} JSON values", self.max_values);
            return Err(ApiError::stored_too_large(limit));
        }
        self.held.n_bytes = n_bytes;
        self.held.grow(n_bytes.max(n_values * VALUE_BYTES), state).await
    }

    /// Looks at the body by `read`, as [`Self::parse`] reads it, and leaves it for later.
    pub(crate) async fn examine<T: Send + 'static>(
        self,
        read: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(T, Self), ApiError> {
        let n_bytes = self.held.n_bytes;
        let examine = move || {
            let found = read(&self)?;
            Ok((found, self))
        };
        if n_bytes <= work::SMALL { examine() } else { work::sized(n_bytes, examine).await }
    }

    /// Whether a text is somewhere in the body.
    pub(crate) fn contains(&self, text: &str) -> bool {
        self.text.windows(text.len()).any(|window| window == text.as_bytes())
    }

    /// Reads the body by `read`, beside the threads that serve where it is large. The room of the
    /// request is passed on; the body is gone.
    pub(crate) async fn parse<T: Send + 'static>(
        self,
        read: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(T, Held), ApiError> {
        let n_bytes = self.held.n_bytes;
        let parse = move || {
            let read = read(&self)?;
            Ok((read, self.held))
        };
        if n_bytes <= work::SMALL { parse() } else { work::sized(n_bytes, parse).await }
    }

    /// A body of these fields, with the room of the request that they are from.
    pub(crate) async fn of(body: Map<String, Value>, held: Held) -> Result<Self, ApiError> {
        let n_bytes = held.n_bytes;
        let write = move || {
            let text = serde_json::to_vec(&body).map_err(|e| ApiError::internal(e.to_string()))?;
            drop(body);
            Self::new(text, usize::MAX, held)
        };
        if n_bytes <= work::SMALL { write() } else { work::sized(n_bytes, write).await }
    }
}

impl FromRequest<AppState> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        check_type(request.headers())?;
        check_encoding(request.headers())?;
        let logged = request.extensions().get::<Logged>().cloned().unwrap_or_default();
        let config = state.config();
        let give_back_memory = config.give_back_memory;
        let client = request.extensions().get::<Peer>();
        let client = client.and_then(|peer| peer.client(request.headers()));
        let (permit, share) = (None, None);
        let mut held = Held { n_bytes: 0, permit, client, share, give_back_memory };
        let text = arrival(request, state, &mut held);
        let Ok(text) = tokio::time::timeout(config.body_timeout, text).await else {
            let limit = config.body_timeout;
            return Err(ApiError::body_timeout(format!(
                "the body did not arrive within {limit:?}"
            )));
        };
        let (text, max_values) = (text?, config.limits.values);
        let n_bytes = text.len();
        let mut body = match n_bytes <= work::SMALL {
            true => Self::new(text, max_values, held)?,
            false => work::sized(n_bytes, move || Self::new(text, max_values, held)).await?,
        };
        let n_values = body.members.as_ref().map_or(0, Members::n_values).min(max_values);
        body.held.grow(n_bytes.max(n_values * VALUE_BYTES), state).await?;
        body.logged = logged;
        Ok(body)
    }
}

/// The bytes of a body, for which there is room.
async fn arrival(request: Request, state: &AppState, held: &mut Held) -> Result<Vec<u8>, ApiError> {
    let limit = state.config().limits.body_bytes;
    let declared = request.headers().get(header::CONTENT_LENGTH);
    let declared = declared.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if declared.is_some_and(|length| length > limit) {
        return Err(ApiError::too_large(limit));
    }
    let mut chunks = request.into_body().into_data_stream();
    let mut text = Vec::new();
    let longest = state.config().body_stall_timeout;
    let stalled =
        |_| ApiError::body_timeout(format!("nothing of the body arrived for {longest:?}"));
    while let Some(chunk) = tokio::time::timeout(longest, chunks.next()).await.map_err(stalled)? {
        let chunk = chunk.map_err(|error| ApiError::malformed(error.to_string()))?;
        let n_bytes = text.len() + chunk.len();
        if n_bytes > limit {
            return Err(ApiError::too_large(limit));
        }
        held.n_bytes = n_bytes;
        held.grow(n_bytes, state).await?;
        text.extend_from_slice(&chunk);
    }
    Ok(text)
}

fn in_words<E: fmt::Display>(error: &serde_path_to_error::Error<E>) -> ApiError {
    let path = error.path().to_string();
    let message = in_json_words(&error.inner().to_string());
    // A dot is the whole body, and a question mark what is no field of it.
    match path.as_str() {
        "." | "?" => ApiError::malformed(message),
        _ => ApiError::invalid(path.clone(), format!("`{path}`: {}", without_place(&message))),
    }
}

/// A message without the line and column, which are those in a field and not in the body.
fn without_place(message: &str) -> &str {
    message.rfind(" at line ").map_or(message, |at| &message[..at])
}

/// What curl says of every body that it is not told the type of.
const FORM: &str = "application/x-www-form-urlencoded";

/// `application/json`, or a type that is built on JSON. Commands without a type, as Ollama's documents show
/// them, are read as JSON too; web pages, which can send forms anywhere, name their `Origin` and are not.
fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let found = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = found.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let essence = essence.to_ascii_lowercase();
    let json = essence == "application/json"
        || essence.starts_with("application/") && essence.ends_with("+json");
    let untyped = (found.is_none() || essence == FORM) && !headers.contains_key(header::ORIGIN);
    if json || untyped { Ok(()) } else { Err(ApiError::media_type(found)) }
}

/// A body that is not compressed.
fn check_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    let mut found = headers.get_all(header::CONTENT_ENCODING).iter();
    match found.find(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity")) {
        None => Ok(()),
        Some(value) => Err(ApiError::content_encoding(&String::from_utf8_lossy(value.as_bytes()))),
    }
}

/// An error of the JSON reader, in which types have JSON's names and not those of the server's
/// own structures.
fn in_json_words(message: &str) -> String {
    const EXPECTED: &str = "expected ";
    let message = message.replace("unknown variant `", "unknown value `");
    let Some(start) = message.rfind(EXPECTED).map(|at| at + EXPECTED.len()) else {
        return message;
    };
    let (before, rest) = message.split_at(start);
    let (expected, place) = rest.split_at(rest.find(" at line ").unwrap_or(rest.len()));
    let is_one_of = |names: &[&str]| names.contains(&expected);
    let begins = |names: &[&str]| names.iter().any(|name| expected.starts_with(name));
    let words = if is_one_of(&["u8", "u16", "u32", "u64", "usize"]) {
        "a whole number that is not negative"
    } else if is_one_of(&["i8", "i16", "i32", "i64", "isize"]) {
        "a whole number"
    } else if is_one_of(&["f32", "f64"]) {
        "a number"
    } else if is_one_of(&["a boolean"]) {
        "true or false"
    } else if is_one_of(&["a sequence"]) {
        "an array"
    } else if is_one_of(&["a map"]) || begins(&["struct ", "internally tagged enum "]) {
        "an object"
    } else if begins(&["variant identifier", "enum ", "string or map"]) {
        "a string"
    } else {
        expected
    };
    let before = before.replace("invalid type: sequence", "invalid type: array");
    let before = before.replace("invalid type: map", "invalid type: object");
    format!("{before}{words}{place}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only the errors are looked at")]
    struct Body {
        n: Option<usize>,
        list: Option<Vec<u32>>,
    }

    #[test]
    fn errors_name_the_field() {
        let check = |json: &'static str, param: Option<&str>, want: &str| {
            let error = JsonBody::from_text(json).read::<Body>().unwrap_err();
            assert_eq!(error.body()["error"]["param"].as_str(), param, "{error}");
            assert!(error.to_string().contains(want), "{error}");
        };
        check("", None, "EOF");
        check("{", None, "EOF");
        check("[1", None, "");
        check(r#"{"n": 1} x"#, None, "trailing");
        check(r#"{"n": -1}"#, Some("n"), "-1");
        check(r#"{"n": 1, "n": 2}"#, None, "duplicate");
        check(r#"{"list": [1, "a"]}"#, Some("list[1]"), "whole number that is not negative");
    }

    #[test]
    fn types_have_the_names_of_json() {
        #[derive(Debug, Deserialize)]
        #[expect(dead_code, reason = "only the errors are looked at")]
        struct Fields {
            number: Option<f32>,
            whole: Option<i64>,
            flag: Option<bool>,
            text: Option<String>,
            list: Option<Vec<String>>,
            nested: Option<Box<Fields>>,
            kind: Option<Kind>,
            tagged: Option<Tagged>,
        }
        #[derive(Debug, Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Kind {
            One,
            Two,
        }
        #[derive(Debug, Deserialize)]
        #[serde(tag = "type", rename_all = "lowercase")]
        enum Tagged {
            Only,
        }
        let check = |json: &'static str, want: &str| {
            let error = JsonBody::from_text(json).read::<Fields>().unwrap_err();
            assert!(error.to_string().contains(want), "{json}: {error}");
        };
        check("7", "invalid type: integer `7`, expected an object");
        check(r#"{"number": "u32"}"#, "`number`: invalid type: string \"u32\", expected a number");
        check(r#"{"number": [1]}"#, "invalid type: array, expected a number");
        check(r#"{"whole": {}}"#, "invalid type: object, expected a whole number");
        check(r#"{"flag": 1}"#, "expected true or false");
        check(r#"{"text": 1}"#, "expected a string");
        check(r#"{"list": "a"}"#, "expected an array");
        check(r#"{"nested": 1}"#, "expected an object");
        check(r#"{"kind": "three"}"#, "unknown value `three`, expected `one` or `two`");
        check(r#"{"tagged": 1}"#, "expected an object");
        check(r#"{"number": "a, expected struct"}"#, "\"a, expected struct\", expected a number");
    }

    #[test]
    fn content_encodings() {
        let check = |value: Option<&'static str>, ok: bool| {
            let mut headers = HeaderMap::new();
            if let Some(value) = value {
                headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(value));
            }
            assert_eq!(check_encoding(&headers).is_ok(), ok, "{value:?}");
        };
        check(None, true);
        check(Some("Identity"), true);
        check(Some("gzip"), false);
        check(Some("gzip, identity"), false);
    }

    #[test]
    fn content_types() {
        let check = |value: Option<&'static str>, ok: bool, of_page: bool| {
            let mut headers = HeaderMap::new();
            if let Some(value) = value {
                headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(value));
            }
            assert_eq!(check_type(&headers).is_ok(), ok, "{value:?}");
            headers.insert(header::ORIGIN, HeaderValue::from_static("http://localhost"));
            assert_eq!(check_type(&headers).is_ok(), of_page, "{value:?} of a page");
        };
        check(Some("application/json"), true, true);
        check(Some("Application/JSON; charset=utf-8"), true, true);
        check(Some("application/problem+json"), true, true);
        check(Some("text/plain"), false, false);
        check(Some("multipart/form-data"), false, false);
        check(Some("application/x-www-form-urlencoded"), true, false);
        check(None, true, false);
    }
}
