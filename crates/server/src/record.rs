//! The record of a finished request, for an observer: [`RequestObserver`].
//!
//! A record is begun before a request's handler, filled in on its way, and handed over when the
//! last byte of the answer was written or the client has left. Nothing is exported here.

use axum::extract::{MatchedPath, Request, State};
use axum::http::HeaderMap;
use axum::middleware::Next;
use axum::response::Response;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Watches requests.
pub trait RequestObserver: fmt::Debug + Send + Sync {
    /// A request is over. This is called by the threads that serve and must not wait.
    fn ended(&self, record: RequestRecord);
}

/// What is known of a request when it is over.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RequestRecord {
    /// The id that the answer carries as `x-request-id`.
    pub id: String,
    /// The method.
    pub method: String,
    /// The path that was requested.
    pub path: String,
    /// The route that it was found to be, such as `/v1/models/{*name}`.
    pub route: Option<String>,
    /// The header of W3C's trace context that names the caller's span.
    pub traceparent: Option<String>,
    /// The header of W3C's trace context that goes with it.
    pub tracestate: Option<String>,
    /// When it began.
    pub started: SystemTime,
    /// From its head to the end of the answer.
    pub duration: Duration,
    /// From its head to the first token.
    pub time_to_first_token: Option<Duration>,
    /// The status of the answer; `None` if the client left before there was one.
    pub status: Option<u16>,
    /// The code of the failure that ended a generation; a stream has status 200 in spite of it.
    pub error: Option<String>,
    /// The name of the model that it was for.
    pub model: Option<String>,
    /// Tokens of its prompts.
    pub input_tokens: usize,
    /// Of these, tokens that were in the prefix cache.
    pub cached_tokens: usize,
    /// Tokens that were generated.
    pub output_tokens: usize,
    /// Why its answers ended, as far as they did.
    pub finish_reasons: Vec<&'static str>,
}

/// The record of a request that is not over. It is handed over when the last clone is dropped.
#[derive(Debug, Clone)]
pub(crate) struct Recorder(Arc<Live>);

#[derive(Debug)]
struct Live {
    observer: Arc<dyn RequestObserver>,
    record: Mutex<RequestRecord>,
    started: Instant,
}

impl Recorder {
    fn begin(observer: Arc<dyn RequestObserver>, request: &Request) -> Self {
        let route = request.extensions().get::<MatchedPath>();
        let header = |name: &str| text(request.headers(), name);
        let record = RequestRecord {
            id: header("x-request-id").unwrap_or_default(),
            method: request.method().to_string(),
            path: request.uri().path().to_owned(),
            route: route.map(|path| path.as_str().to_owned()),
            traceparent: header("traceparent"),
            tracestate: header("tracestate"),
            started: SystemTime::now(),
            duration: Duration::ZERO,
            time_to_first_token: None,
            status: None,
            error: None,
            model: None,
            input_tokens: 0,
            cached_tokens: 0,
            output_tokens: 0,
            finish_reasons: Vec::new(),
        };
        Self(Arc::new(Live { observer, record: Mutex::new(record), started: Instant::now() }))
    }

    /// Fills in what has become known.
    pub(crate) fn note(&self, change: impl FnOnce(&mut RequestRecord)) {
        change(&mut self.0.record.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The first token was generated.
    pub(crate) fn first_token(&self) {
        let elapsed = self.0.started.elapsed();
        self.note(|record| record.time_to_first_token = Some(elapsed));
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let record = self.record.get_mut().unwrap_or_else(PoisonError::into_inner);
        record.duration = self.started.elapsed();
        self.observer.ended(record.clone());
    }
}

tokio::task_local! {
    static CURRENT: Recorder;
}

/// The record of the request that is being handled, if there is an observer.
pub(crate) fn current() -> Option<Recorder> {
    CURRENT.try_with(Clone::clone).ok()
}

/// Keeps a record of a request for the observer.
pub(crate) async fn observe(
    State(observer): State<Arc<dyn RequestObserver>>,
    request: Request,
    next: Next,
) -> Response {
    let recorder = Recorder::begin(observer, &request);
    let response = CURRENT.scope(recorder.clone(), next.run(request)).await;
    recorder.note(|record| record.status = Some(response.status().as_u16()));
    response
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}
