//! MCP's streamable HTTP over the existing HTTP client.
//!
//! A message is sent by POST, and answered with JSON or with a stream of events. The stream that a
//! server may offer for messages of its own is not opened: nothing here answers them. Threads wait for the
//! network that are not the runtime's, so that a server that does not answer delays no end of it.

use std::collections::HashMap;
use std::io::{self, Read};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use futures_core::stream::BoxStream;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_client::{
    StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
    StreamableHttpResponseLimits,
};
use sse_stream::{Error as SseError, Sse, SseStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use ureq::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use ureq::{Agent, Body, RequestBuilder};

/// The header that names a session.
const SESSION: &str = "mcp-session-id";
/// Requests to a server that are not answered to their end.
const MAX_REQUESTS: usize = 32;
/// Pieces of a stream that wait to be read.
const PIECES: usize = 16;
/// Bytes of a piece.
const PIECE_LEN: usize = 16 << 10;

type Headers = HashMap<HeaderName, HeaderValue>;
type Error = StreamableHttpError<ureq::Error>;

/// The client of one server.
#[derive(Clone, Debug)]
pub(super) struct Http {
    agent: Agent,
    requests: Arc<Semaphore>,
}

/// A response whose body is to be read.
struct Pending {
    response: Response<Body>,
    _request: OwnedSemaphorePermit,
}

impl Http {
    /// Without a proxy for this machine. A request with the body of its response takes at most `time`.
    pub(super) fn new(is_local: bool, time: Duration) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // An answer from elsewhere is not the server's.
            .max_redirects(0)
            .timeout_connect(Some(Duration::from_secs(30)))
            .timeout_global(Some(time))
            .user_agent(concat!("realizar/", env!("CARGO_PKG_VERSION")));
        let config = if is_local { config.proxy(None) } else { config.https_only(true) };
        Self { agent: config.build().into(), requests: Arc::new(Semaphore::new(MAX_REQUESTS)) }
    }

    /// Sends a request on a thread of its own, and waits for the head of the response.
    ///
    /// # Errors
    /// If [`MAX_REQUESTS`] are not answered to their end, or the server cannot be reached.
    async fn call(
        &self,
        request: impl FnOnce(&Agent) -> Result<Response<Body>, ureq::Error> + Send + 'static,
    ) -> Result<Pending, Error> {
        let permit = Arc::clone(&self.requests).try_acquire_owned();
        let too_many =
            |_| io::Error::other(format!("{MAX_REQUESTS} requests are not answered yet"));
        let permit = permit.map_err(too_many)?;
        let agent = self.agent.clone();
        let sent = on_thread(move || request(&agent).map(|response| (response, permit))).await?;
        let (response, _request) = sent.map_err(Error::Client)?;
        Ok(Pending { response, _request })
    }
}

/// The headers of a request.
fn headers(session: Option<&str>, token: Option<&str>, custom: Headers) -> HeaderMap {
    let mut headers: HeaderMap = custom.into_iter().collect();
    let mut set = |name: &'static str, value: String| {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    };
    if let Some(session) = session {
        set(SESSION, session.to_owned());
    }
    if let Some(token) = token {
        set("authorization", format!("Bearer {token}"));
    }
    headers
}

/// The request with these headers.
fn with<B>(request: RequestBuilder<B>, headers: &HeaderMap) -> RequestBuilder<B> {
    headers.iter().fold(request, |request, (name, value)| request.header(name, value))
}

/// Calls a function that waits for the network.
async fn on_thread<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (sender, receiver) = oneshot::channel();
    // Nobody may be left to be told.
    spawn(move || drop(sender.send(f())))?;
    receiver.await.map_err(|_| io::Error::other("the thread of a request ended"))
}

fn spawn(f: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("mcp".to_owned()).spawn(f).map(drop)
}

/// Up to `limit` bytes of a body, and whether that is all of it.
async fn read(mut pending: Pending, limit: usize) -> Result<(Vec<u8>, bool), Error> {
    let read = move || {
        let mut bytes = Vec::new();
        let mut reader = pending.response.body_mut().as_reader().take(limit as u64 + 1);
        reader.read_to_end(&mut bytes)?;
        let is_whole = bytes.len() <= limit;
        bytes.truncate(limit);
        io::Result::Ok((bytes, is_whole))
    };
    Ok(on_thread(read).await??)
}

/// The events of a body, which a thread reads.
fn events(
    mut pending: Pending,
    max_event: usize,
) -> io::Result<BoxStream<'static, Result<Sse, SseError>>> {
    let (sender, receiver) = mpsc::channel::<io::Result<Bytes>>(PIECES);
    spawn(move || {
        let mut reader = pending.response.body_mut().as_reader();
        // Bytes since the end of an event, of which an endless one has too many.
        let mut len = 0;
        loop {
            let mut piece = vec![0; PIECE_LEN];
            let piece = match reader.read(&mut piece) {
                Ok(0) => return,
                Ok(n) => {
                    piece.truncate(n);
                    let end = piece.windows(2).rposition(|two| two == b"\n\n" || two == b"\n\r");
                    len = end.map_or(len + n, |end| n - end);
                    match len <= max_event {
                        true => Ok(Bytes::from(piece)),
                        false => Err(io::Error::other("an event from the server is too large")),
                    }
                }
                Err(error) => Err(error),
            };
            let is_last = piece.is_err();
            if sender.blocking_send(piece).is_err() || is_last {
                return;
            }
        }
    })?;
    Ok(Box::pin(SseStream::from_bytes_stream(ReceiverStream::new(receiver))))
}

impl StreamableHttpClient for Http {
    type Error = ureq::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<StreamableHttpPostResponse, Error> {
        let limits = StreamableHttpResponseLimits::default();
        self.post_message_with_response_limits(
            uri,
            message,
            session_id,
            auth_header,
            custom_headers,
            limits,
        )
        .await
    }

    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: Headers,
        limits: StreamableHttpResponseLimits,
    ) -> Result<StreamableHttpPostResponse, Error> {
        let body = serde_json::to_vec(&message)?;
        let headers = headers(session_id.as_deref(), auth_header.as_deref(), custom_headers);
        let post = move |agent: &Agent| {
            let request = agent
                .post(&*uri)
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::ACCEPT, "application/json, text/event-stream");
            with(request, &headers).send(&body)
        };
        let pending = self.call(post).await?;
        let response = &pending.response;
        let status = response.status();
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if status == StatusCode::NOT_FOUND && session_id.is_some() {
            return Err(Error::SessionExpired);
        }
        let text = |name: HeaderName| {
            response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
        };
        let session = text(HeaderName::from_static(SESSION));
        let kind = text(header::CONTENT_TYPE);
        let media_type = kind.as_deref().and_then(|kind| kind.split(';').next()).map(str::trim);
        match media_type {
            Some("text/event-stream") if status.is_success() => {
                let events = events(pending, limits.max_sse_event_size)?;
                Ok(StreamableHttpPostResponse::Sse(events, session))
            }
            Some("application/json") => {
                let limit = limits.max_json_response_size;
                let (body, is_whole) = read(pending, limit).await?;
                if !is_whole {
                    return Err(Error::ResponseBodyTooLarge { max_size: limit });
                }
                match serde_json::from_slice::<ServerJsonRpcMessage>(&body) {
                    Ok(message) => Ok(StreamableHttpPostResponse::Json(message, session)),
                    Err(error) if status.is_success() => Err(error.into()),
                    Err(_) => Err(refused(status, &body)),
                }
            }
            _ if status.is_success() => Err(Error::UnexpectedContentType(kind)),
            _ => {
                let (body, _) = read(pending, limits.max_error_response_size.min(1 << 10)).await?;
                Err(refused(status, &body))
            }
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<(), Error> {
        let headers = headers(Some(&session_id), auth_header.as_deref(), custom_headers);
        let delete = move |agent: &Agent| with(agent.delete(&*uri), &headers).call();
        match self.call(delete).await?.response.status() {
            StatusCode::METHOD_NOT_ALLOWED => Err(Error::ServerDoesNotSupportDeleteSession),
            status if status.is_success() => Ok(()),
            status => Err(refused(status, b"")),
        }
    }

    async fn get_stream(
        &self,
        _uri: Arc<str>,
        _session_id: Option<Arc<str>>,
        _last_event_id: Option<String>,
        _auth_header: Option<String>,
        _custom_headers: Headers,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Error> {
        Err(Error::ServerDoesNotSupportSse)
    }
}

/// The error of an answer with this status; the start of its text often says why.
fn refused(status: StatusCode, body: &[u8]) -> Error {
    let text = String::from_utf8_lossy(body);
    let line = text.lines().next().unwrap_or_default().trim();
    let line: String = line.chars().filter(|c| !c.is_control()).take(200).collect();
    let separator = if line.is_empty() { "" } else { ": " };
    Error::UnexpectedServerResponse(format!("HTTP {status}{separator}{line}").into())
}
