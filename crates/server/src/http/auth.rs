//! API keys: a request shows one as a bearer token or in `x-api-key`.

use crate::error::ApiError;
use crate::state::AppState;
use crate::state::stored::Owner;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest as _, Sha256};
use std::convert::Infallible;
use subtle::{Choice, ConstantTimeEq};

/// Lets requests with a key pass, and all of them where there are no keys.
pub(crate) async fn require_key(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let config = state.config();
    if !config.api_keys.is_empty() {
        // A client that may load models may also use them.
        check(&[&config.api_keys, &config.admin_keys], request.headers())?;
    }
    Ok(next.run(request).await)
}

/// Lets requests pass that may load and unload models, and have tools run.
pub(crate) async fn require_admin(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    check_admin(&state, request.headers())?;
    Ok(next.run(request).await)
}

/// Whether a request may load and unload models: with an admin key; where there are none, with an
/// API key; and where there are none either, if only this machine reaches the server. Where hosts
/// and origins are checked, pages need to be the server's own or allowed.
pub(crate) fn check_admin(state: &AppState, headers: &HeaderMap) -> Result<(), ApiError> {
    let config = state.config();
    if let Some(hosts) = state.hosts() {
        hosts.check_own(headers)?;
    }
    let keys = match config.admin_keys.is_empty() {
        true => &config.api_keys,
        false => &config.admin_keys,
    };
    if keys.is_empty() && !state.is_local() {
        let message = "this endpoint requires an API key; the server has none and can be reached \
                       from other machines";
        return Err(ApiError::forbidden(message));
    }
    check(&[keys], headers)
}

/// Looks for the key that a request shows in these lists, unless all are empty.
fn check(keys: &[&[String]], headers: &HeaderMap) -> Result<(), ApiError> {
    if keys.iter().all(|list| list.is_empty()) {
        return Ok(());
    }
    let Some(shown) = shown_key(headers) else {
        let message = "this server requires an API key: `Authorization: Bearer KEY`";
        return Err(ApiError::unauthorized(message));
    };
    // Every key is compared, and each in a time that depends on its length alone.
    let equal = |key: &String| key.as_bytes().ct_eq(shown);
    let found = keys.iter().copied().flatten().map(equal).fold(Choice::from(0), |a, b| a | b);
    if bool::from(found) { Ok(()) } else { Err(ApiError::unauthorized("unknown API key")) }
}

impl FromRequestParts<AppState> for Owner {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Infallible> {
        let config = state.config();
        // Where there are no keys, clients show any or none.
        let has_keys = !config.api_keys.is_empty();
        let key = shown_key(&parts.headers).filter(|_| has_keys);
        Ok(Self(Sha256::digest(key.unwrap_or_default()).into()))
    }
}

fn shown_key(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
    });
    bearer.or_else(|| headers.get("x-api-key").map(|value| value.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderName, HeaderValue};

    #[test]
    fn keys() {
        let keys = ["secret".to_owned(), "other".to_owned()];
        let with = |keys: &[String], name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
            check(&[keys], &headers).is_ok()
        };
        for (name, value, ok) in [
            ("authorization", "Bearer secret", true),
            ("authorization", "bearer  other", true),
            ("authorization", "Bearer secre", false),
            ("authorization", "Bearer", false),
            ("authorization", "Basic secret", false),
            ("x-api-key", "other", true),
            ("x-api-key", "", false),
            ("x-other", "secret", false),
        ] {
            assert_eq!(with(&keys, name, value), ok, "{name}: {value}");
            assert!(with(&[], name, value), "no keys are asked for");
        }
    }
}
