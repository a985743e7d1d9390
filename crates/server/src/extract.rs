//! The body of a request: its arrival, its size, its type, and its JSON.

use crate::error::ApiError;
use crate::state::AppState;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use serde::de::DeserializeOwned;

/// A JSON body that has arrived. It can be read as several types, each of which takes the fields
/// that it knows.
#[derive(Debug, Clone)]
pub(crate) struct JsonBody(Bytes);

impl JsonBody {
    /// The body as a `T`; an error names the field.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        let mut json = serde_json::Deserializer::from_slice(&self.0);
        let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let path = error.path().to_string();
            let message = in_json_words(&error.into_inner().to_string());
            // A dot is the whole body, and a question mark what is no field of it.
            match path.as_str() {
                "." | "?" => ApiError::malformed(message),
                _ => ApiError::invalid(path.clone(), format!("`{path}`: {message}")),
            }
        })?;
        json.end().map_err(|error| ApiError::malformed(error.to_string()))?;
        Ok(value)
    }

    /// A body with this content.
    pub(crate) fn of(value: &serde_json::Value) -> Self {
        Self(Bytes::from(value.to_string()))
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl FromRequest<AppState> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        check_type(request.headers())?;
        check_encoding(request.headers())?;
        let config = state.config();
        let bytes = Bytes::from_request(request, state);
        let Ok(bytes) = tokio::time::timeout(config.body_timeout, bytes).await else {
            return Err(ApiError::body_timeout(config.body_timeout));
        };
        bytes.map(Self).map_err(|rejection| {
            let message = rejection.body_text();
            match rejection.into_response().status() {
                StatusCode::PAYLOAD_TOO_LARGE => ApiError::too_large(config.limits.body_bytes),
                _ => ApiError::malformed(message),
            }
        })
    }
}

/// `application/json`, or a type that is built on JSON.
fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let found = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = found.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let essence = essence.to_ascii_lowercase();
    let json = essence == "application/json"
        || essence.starts_with("application/") && essence.ends_with("+json");
    if json { Ok(()) } else { Err(ApiError::media_type(found)) }
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
            let error = JsonBody(Bytes::from_static(json.as_bytes())).read::<Body>().unwrap_err();
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
            let error = JsonBody(Bytes::from_static(json.as_bytes())).read::<Fields>().unwrap_err();
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
        let check = |value: Option<&'static str>, ok: bool| {
            let mut headers = HeaderMap::new();
            if let Some(value) = value {
                headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(value));
            }
            assert_eq!(check_type(&headers).is_ok(), ok, "{value:?}");
        };
        check(Some("application/json"), true);
        check(Some("Application/JSON; charset=utf-8"), true);
        check(Some("application/problem+json"), true);
        check(Some("text/plain"), false);
        check(Some("application/x-www-form-urlencoded"), false);
        check(None, false);
    }
}
