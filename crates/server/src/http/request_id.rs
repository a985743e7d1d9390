//! Request ids: taken from `x-request-id` or made up, put into the request's tracing span and
//! given back.

use crate::ids;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use std::time::Instant;
use tracing::Instrument;

const HEADER: HeaderName = HeaderName::from_static("x-request-id");
/// The longest id that is accepted from a client.
const MAX_LEN: usize = 128;

/// Runs the request in a span with its id, and logs how it ended.
pub(crate) async fn with_request_id(mut request: Request, next: Next) -> Response {
    let given = request.headers().get(HEADER).and_then(|value| value.to_str().ok());
    let given = given.filter(|id| !id.is_empty() && id.len() <= MAX_LEN);
    let id = given.map_or_else(|| ids::new("req-"), str::to_owned);
    let value = HeaderValue::from_str(&id).ok();
    if let Some(value) = &value {
        // For those further in.
        request.headers_mut().insert(HEADER, value.clone());
    }
    let (method, path) = (request.method(), request.uri().path());
    let span = tracing::info_span!("request", %id, %method, path);
    async move {
        let start = Instant::now();
        let mut response = next.run(request).await;
        // Of a stream, this is the time until it begins.
        let ms = start.elapsed().as_secs_f64() * 1e3;
        tracing::info!(status = response.status().as_u16(), ms, "answered");
        if let Some(value) = value {
            response.headers_mut().insert(HEADER, value);
        }
        response
    }
    .instrument(span)
    .await
}
