//! The routes and what lies around them. An endpoint is one file, one line here, and its description
//! in `openapi/`.

use crate::api::llama::{
    self, completion, embedding, infill, models as loads, props, slots, tokens,
};
use crate::api::openai::{chat, completions, embeddings, models, stored as completed};
use crate::api::scores::{rerank, score};
use crate::api::status::{health, info, metrics};
use crate::api::{dialects, mcp, ollama, responses};
use crate::error::{ApiError, Error};
use crate::hosts::{self, Hosts, ModelRoutes};
use crate::http::{auth, request_id};
use crate::state::{AppState, history};
use crate::{openapi, page, record};
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Router, middleware};
use futures_util::StreamExt as _;
use realizar_runtime::panics;
use std::any::Any;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// Paths and what answers there. `openapi/` describes each of them.
pub(crate) type Routes = Vec<(&'static str, MethodRouter<AppState>)>;

/// Probes, which are answered on connections beyond the limits too.
fn probes() -> Routes {
    vec![
        ("/health", get(health::ready)),
        ("/live", get(health::live)),
        ("/ping", get(health::ready).post(health::ready)),
        ("/ready", get(health::ready)),
    ]
}

/// What is open to everyone.
pub(crate) fn open() -> Routes {
    let mut routes = probes();
    routes.extend([
        ("/", get(page::get)),
        ("/openapi.json", get(openapi::get)),
        ("/page/{file}", get(page::module)),
    ]);
    routes
}

/// What uses models or tells of them, and asks for a key, if there are keys. Programs and pages of this
/// machine may use it without being allowed.
pub(crate) fn models() -> Routes {
    vec![
        ("/api/chat", post(ollama::generate::chat)),
        ("/api/embed", post(ollama::embed::embed)),
        ("/api/embeddings", post(ollama::embed::embeddings)),
        ("/api/generate", post(ollama::generate::generate)),
        ("/api/ps", get(ollama::models::ps)),
        ("/api/show", post(ollama::models::show)),
        ("/api/tags", get(ollama::models::tags)),
        ("/api/version", get(ollama::models::version)),
        ("/apply-template", post(tokens::apply_template)),
        ("/completion", post(completion::create)),
        ("/completions", post(completion::create)),
        ("/detokenize", post(tokens::detokenize)),
        ("/embedding", post(embedding::create)),
        ("/embeddings", post(embedding::create)),
        ("/get_model_info", get(info::model_info)),
        ("/infill", post(infill::create)),
        ("/models", get(models::list)),
        ("/props", get(props::get).post(props::set)),
        ("/rerank", post(rerank::create)),
        ("/score", post(score::create)),
        ("/tokenize", post(tokens::tokenize)),
        ("/v1/chat/completions", post(chat::create)),
        ("/v1/chat/completions/render", post(chat::render)),
        ("/v1/chat/completions/{id}", get(completed::get).delete(completed::delete)),
        ("/v1/chat/completions/{id}/messages", get(completed::messages)),
        ("/v1/completions", post(completions::create)),
        ("/v1/completions/render", post(completions::render)),
        ("/v1/embeddings", post(embeddings::create)),
        ("/v1/messages", post(dialects::messages)),
        ("/v1/messages/count_tokens", post(dialects::count_tokens)),
        ("/v1/models", get(models::list)),
        ("/v1/models/{*name}", get(models::get)),
        ("/v1/rerank", post(rerank::create)),
        ("/v1/responses", post(responses::endpoint::create)),
        ("/v1/responses/input_tokens", post(responses::endpoint::input_tokens)),
        ("/v1/responses/{id}", get(responses::stored::get).delete(responses::stored::delete)),
        ("/v1/responses/{id}/input_items", get(responses::stored::input_items)),
        ("/v1/score", post(score::create)),
        ("/version", get(health::version)),
    ]
}

/// What tells of the server itself, and asks for a key, if there are keys.
pub(crate) fn guarded() -> Routes {
    vec![
        ("/get_load", get(info::load)),
        ("/get_server_info", get(info::server_info)),
        ("/lora-adapters", get(props::adapters).post(props::scale_adapters)),
        ("/metrics", get(metrics::get)),
        ("/metrics/history", get(history::get)),
        ("/slots", get(slots::get)),
    ]
}

/// What asks for the right to load and unload models, or to have tools run.
pub(crate) fn administered() -> Routes {
    vec![
        ("/api/pull", post(ollama::models::pull)),
        ("/mcp/call", post(mcp::call)),
        ("/mcp/tools", get(mcp::tools)),
        ("/models/load", post(loads::load)),
        ("/models/unload", post(loads::unload)),
    ]
}

fn router(routes: Routes) -> Router<AppState> {
    routes.into_iter().fold(Router::new(), |router, (path, route)| router.route(path, route))
}

/// The server as a service, for tests and for other programs to put into theirs.
///
/// # Errors
/// If an allowed origin cannot be a header's value, or an allowed host is not a name.
pub fn app(state: AppState) -> Result<Router, Error> {
    let guard = middleware::from_fn_with_state(state.clone(), auth::require_key);
    let model_routes = ModelRoutes::new(models().into_iter().map(|(path, _)| path));
    let guarded = router(models()).merge(router(guarded())).route_layer(guard);
    let guard = middleware::from_fn_with_state(state.clone(), auth::require_admin);
    let administered = router(administered()).route_layer(guard);
    let cors = cors(&state.config().allowed_origins, model_routes.clone())?;
    let mut routes = router(open())
        .merge(guarded)
        .merge(administered)
        .fallback(unknown_url)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(CatchPanicLayer::custom(panicked));
    if let Some(hosts) = Hosts::of(state.config(), model_routes)? {
        state.limit_hosts(hosts.clone());
        routes = routes.layer(middleware::from_fn_with_state(hosts, hosts::check));
    }
    routes = routes.layer(middleware::from_fn(dialects::with_own_errors));
    if let Some(observer) = &state.config().observer {
        routes = routes.layer(middleware::from_fn_with_state(observer.clone(), record::observe));
    }
    Ok(routes.layer(middleware::from_fn(request_id::with_request_id)).layer(cors).with_state(state))
}

/// The answer to connections beyond the limit: to probes what they ask for, and to others that the server is full.
pub(crate) fn full(state: AppState) -> Router {
    router(probes())
        .fallback(too_many_connections)
        .layer(middleware::from_fn(request_id::with_request_id))
        .with_state(state)
}

async fn too_many_connections(request: Request) -> ApiError {
    // A client that still writes would not read an answer.
    let mut body = request.into_body().into_data_stream();
    while let Some(Ok(_)) = body.next().await {}
    ApiError::too_many_connections()
}

async fn unknown_url(request: Request) -> ApiError {
    let path = request.uri().path();
    let unknown = || ApiError::unknown_url(request.method().as_str(), path);
    ollama::not_offered(path).or_else(|| llama::not_offered(path)).unwrap_or_else(unknown)
}

async fn method_not_allowed(request: Request) -> ApiError {
    ApiError::method_not_allowed(request.method().as_str(), request.uri().path())
}

#[expect(clippy::needless_pass_by_value, reason = "the layer hands the panic over")]
fn panicked(panic: Box<dyn Any + Send>) -> Response {
    tracing::error!("a handler panicked: {}", panics::text(&*panic));
    ApiError::internal("the server failed on this request").into_response()
}

/// Pages of the origins may use the server, and pages of this machine its models; browsers refuse others.
fn cors(origins: &[String], model_routes: ModelRoutes) -> Result<CorsLayer, Error> {
    let has = |word: &str| origins.iter().any(|origin| origin == word);
    let allowed = if has("*") {
        AllowOrigin::any()
    } else {
        let values = origins.iter().map(|origin| {
            HeaderValue::from_str(origin).map_err(|_| Error::Config {
                setting: "allowed_origins",
                reason: format!("`{origin}` is not an origin"),
            })
        });
        let (values, local) = (values.collect::<Result<Vec<_>, _>>()?, has("localhost"));
        AllowOrigin::predicate(move |origin, parts| {
            values.contains(origin)
                || local && origin.to_str().is_ok_and(hosts::is_local)
                || model_routes.admit(origin, &parts.extensions)
        })
    };
    Ok(CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        // SDKs send headers of their own, and more with each version: `x-stainless-…`,
        // `anthropic-version`, `openai-organization`.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([HeaderName::from_static("x-request-id"), header::RETRY_AFTER]))
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
            let routes = ModelRoutes::new([]);
            assert_eq!(cors(&origins(list), routes).is_ok(), ok, "{list:?}");
        }
    }
}
