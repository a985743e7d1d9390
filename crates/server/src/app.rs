//! The routes, what lies around them, and the loop that serves them. An endpoint is one file,
//! one line here, and its description in `openapi/`.

use crate::config::ServerConfig;
use crate::error::{ApiError, Error};
use crate::openai::{chat, completions, embeddings, models};
use crate::state::{AppState, Models};
use crate::{auth, dialects, health, info, metrics, native, openapi, page, request_id};
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::serve::ListenerExt;
use axum::{Router, middleware};
use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinError;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowOrigin, CorsLayer};

/// How long connections may take to hear the end of their answers once the engines have ended.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Paths and what answers there. `openapi/` describes each of them.
pub(crate) type Routes = Vec<(&'static str, MethodRouter<AppState>)>;

/// What is open to everyone.
pub(crate) fn open() -> Routes {
    vec![
        ("/", get(page::get)),
        ("/health", get(health::ready)),
        ("/live", get(health::live)),
        ("/openapi.json", get(openapi::get)),
        ("/ping", get(health::ready).post(health::ready)),
        ("/ready", get(health::ready)),
    ]
}

/// What asks for a key, if there are keys.
pub(crate) fn guarded() -> Routes {
    vec![
        ("/apply-template", post(native::apply_template)),
        ("/detokenize", post(native::detokenize)),
        ("/get_model_info", get(info::model_info)),
        ("/get_server_info", get(info::server_info)),
        ("/metrics", get(metrics::get)),
        ("/tokenize", post(native::tokenize)),
        ("/v1/chat/completions", post(chat::create)),
        ("/v1/chat/completions/render", post(chat::render)),
        ("/v1/completions", post(completions::create)),
        ("/v1/completions/render", post(completions::render)),
        ("/v1/embeddings", post(embeddings::create)),
        ("/v1/messages", post(dialects::messages)),
        ("/v1/messages/count_tokens", post(dialects::count_tokens)),
        ("/v1/models", get(models::list)),
        ("/v1/models/{*name}", get(models::get)),
        ("/v1/responses", post(dialects::responses)),
        ("/version", get(health::version)),
    ]
}

fn router(routes: Routes) -> Router<AppState> {
    routes.into_iter().fold(Router::new(), |router, (path, route)| router.route(path, route))
}

/// The server as a service, for tests and for other programs to put into theirs.
///
/// # Errors
/// If an allowed origin cannot be a header's value.
pub fn app(state: AppState) -> Result<Router, Error> {
    let guard = middleware::from_fn_with_state(state.clone(), auth::require_key);
    let guarded = router(guarded()).route_layer(guard);
    let cors = cors(&state.config().allowed_origins)?;
    Ok(router(open())
        .merge(guarded)
        .fallback(unknown_url)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(state.config().limits.body_bytes))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn(dialects::with_own_errors))
        .layer(middleware::from_fn(request_id::with_request_id))
        .layer(cors)
        .with_state(state))
}

async fn unknown_url(request: Request) -> ApiError {
    ApiError::unknown_url(request.method().as_str(), request.uri().path())
}

async fn method_not_allowed(request: Request) -> ApiError {
    ApiError::method_not_allowed(request.method().as_str(), request.uri().path())
}

#[expect(clippy::needless_pass_by_value, reason = "the layer hands the panic over")]
fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!("a handler panicked: {}", text.unwrap_or("without a message"));
    ApiError::internal("the server failed on this request").into_response()
}

/// Pages of the origins may use the server; without any, browsers are told nothing and refuse.
fn cors(origins: &[String]) -> Result<CorsLayer, Error> {
    if origins.is_empty() {
        return Ok(CorsLayer::new());
    }
    let allowed = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        let values = origins.iter().map(|origin| {
            HeaderValue::from_str(origin).map_err(|_| Error::Config {
                setting: "allowed_origins",
                reason: format!("`{origin}` is not an origin"),
            })
        });
        AllowOrigin::list(values.collect::<Result<Vec<_>, _>>()?)
    };
    let names = ["authorization", "content-type", "x-api-key", "x-request-id"];
    Ok(CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(names.map(HeaderName::from_static))
        .expose_headers([HeaderName::from_static("x-request-id"), header::RETRY_AFTER]))
}

/// A server that listens and does not answer yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    app: Router,
    state: AppState,
}

impl Server {
    /// Begins to listen; connections wait until [`Self::run`]. Models may also be added later,
    /// through [`AppState::models`]; until there is one, the server is not ready.
    ///
    /// # Errors
    /// If a setting cannot be used, or the address cannot be listened on.
    pub async fn bind(config: ServerConfig, models: Models) -> Result<Self, Error> {
        let (host, port) = (config.host.as_str(), config.port);
        let failed = |source| Error::Bind { address: format!("{host}:{port}"), source };
        let listener = TcpListener::bind((host, port)).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let state = AppState::new(config, models);
        Ok(Self { listener, address, app: app(state.clone())?, state })
    }

    /// Where it listens; the port is the real one where the settings left it open.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The state that handlers are given.
    pub fn state(&self) -> &AppState {
        &self.state
    }

    /// Answers until `shutdown` is ready. Then it takes no new requests, lets those that run end
    /// within the time that the settings give them, cancels the others, and returns.
    ///
    /// # Errors
    /// If the listener fails.
    pub async fn run(
        self,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        let (stop, mut stopped) = watch::channel(false);
        // Small packets of streams are not held back.
        let listener = self.listener.tap_io(|connection| {
            if let Err(error) = connection.set_nodelay(true) {
                tracing::debug!("a connection is slower than it could be: {error}");
            }
        });
        let server = axum::serve(listener, self.app).with_graceful_shutdown(async move {
            // An error means that the sender is gone, which is the end as well.
            let _ = stopped.wait_for(|&stop| stop).await;
        });
        let mut server = tokio::spawn(server.into_future());
        tokio::select! {
            result = &mut server => return ended(result),
            () = shutdown => {}
        }
        self.state.close();
        let _ = stop.send(true);
        end_engines(&self.state).await;
        match tokio::time::timeout(LAST_WORDS, &mut server).await {
            Ok(result) => ended(result),
            Err(_) => {
                tracing::warn!("connections that do not read their answers are dropped");
                server.abort();
                Ok(())
            }
        }
    }
}

/// How the task that accepts connections ended.
fn ended(result: Result<io::Result<()>, JoinError>) -> Result<(), Error> {
    result.map_err(io::Error::other).flatten().map_err(Error::Listen)
}

/// Ends all engines at once, and waits for the last one.
async fn end_engines(state: &AppState) {
    let grace = state.config().shutdown_grace;
    let models = state.models().all().into_iter();
    let ends: Vec<_> = models
        .map(|model| tokio::task::spawn_blocking(move || model.engine.shutdown(grace)))
        .collect();
    for end in ends {
        if let Err(error) = end.await {
            tracing::error!("an engine did not end well: {error}");
        }
    }
}

/// Listens and answers until `shutdown` is ready; see [`Server::run`].
///
/// # Errors
/// As [`Server::bind`] and [`Server::run`].
pub async fn serve(
    config: ServerConfig,
    models: Models,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Error> {
    Server::bind(config, models).await?.run(shutdown).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_server_error() {
        for panic in [Box::new("text") as Box<dyn Any + Send>, Box::new(7)] {
            assert_eq!(panicked(panic).status().as_u16(), 500);
        }
    }

    #[test]
    fn origins_are_checked() {
        let origins = |list: &[&str]| list.iter().map(|&s| s.to_owned()).collect::<Vec<_>>();
        for (list, ok) in [(&[][..], true), (&["*"], true), (&["http://a", "a\n"], false)] {
            assert_eq!(cors(&origins(list)).is_ok(), ok, "{list:?}");
        }
    }
}
