//! Requests become spans, which go to a collector by OTLP over HTTP. Where it is and what is sampled
//! is configured by OpenTelemetry's own environment variables.
//!
//! Names of attributes are those of OpenTelemetry's conventions for HTTP servers and generative AI,
//! and vLLM's where those have none.

use std::collections::HashMap;
use std::env;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{Span as _, SpanKind, Status, Tracer as _, TracerProvider as _};
use opentelemetry::{Array, Key, KeyValue, Value};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{
    OTEL_EXPORTER_OTLP_PROTOCOL, OTEL_EXPORTER_OTLP_TIMEOUT, OTEL_EXPORTER_OTLP_TRACES_PROTOCOL,
    OTEL_EXPORTER_OTLP_TRACES_TIMEOUT, SpanExporter, WithHttpConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use realizar_server::{RequestObserver, RequestRecord};

use crate::ui;

/// How long what is left may take to be sent at the end.
const LAST_SPANS: Duration = Duration::from_secs(5);
/// The longest answer of a collector, in bytes.
const MAX_ANSWER: u64 = 4 << 20;
/// Routes that monitoring polls.
const UNTRACED: [&str; 5] = ["/health", "/live", "/metrics", "/ping", "/ready"];

/// Sends spans of requests, on a thread of its own and some at a time.
#[derive(Debug)]
pub(crate) struct Traces {
    provider: SdkTracerProvider,
    spans: Arc<Spans>,
}

impl Traces {
    /// Begins with the settings of the environment.
    pub(crate) fn start() -> Result<Self> {
        check_environment()?;
        let exporter = SpanExporter::builder().with_http().with_http_client(Client::new());
        let exporter = exporter.build().context("cannot send traces")?;
        let resource = Resource::builder();
        let named = Resource::builder().build().get(&Key::new("service.name"));
        let is_named = named.is_some_and(|name| !name.as_str().starts_with("unknown_service"));
        let resource = if is_named { resource } else { resource.with_service_name("realizar") };
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource = resource.with_attribute(version).build();
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter);
        let provider = provider.with_resource(resource).build();
        let tracer = provider.tracer("realizar");
        let spans = Arc::new(Spans { tracer, context: TraceContextPropagator::new() });
        Ok(Self { provider, spans })
    }

    /// What makes spans of a server's requests.
    pub(crate) fn observer(&self) -> Arc<dyn RequestObserver> {
        self.spans.clone()
    }

    /// Sends what is left.
    pub(crate) fn end(self) {
        if let Err(error) = self.provider.shutdown_with_timeout(LAST_SPANS) {
            ui::note(&format!("warning: traces were lost: {error}"));
        }
    }
}

/// Settings that the exporter would pass over are errors.
fn check_environment() -> Result<()> {
    for name in [OTEL_EXPORTER_OTLP_TRACES_PROTOCOL, OTEL_EXPORTER_OTLP_PROTOCOL] {
        match env::var(name) {
            Ok(value) if !["", "http/protobuf"].contains(&&*value) => {
                bail!("{name} is `{value}`; only `http/protobuf` is supported")
            }
            _ => {}
        }
    }
    Ok(())
}

/// The client that requests to the collector are made with.
#[derive(Debug)]
struct Client(ureq::Agent);

impl Client {
    fn new() -> Self {
        let names = [OTEL_EXPORTER_OTLP_TRACES_TIMEOUT, OTEL_EXPORTER_OTLP_TIMEOUT];
        let millis = names.iter().find_map(|name| env::var(name).ok()?.parse().ok());
        let timeout = Duration::from_millis(millis.unwrap_or(10_000));
        let config = ureq::Agent::config_builder().http_status_as_error(false);
        Self(config.timeout_global(Some(timeout)).build().into())
    }
}

#[async_trait::async_trait]
impl HttpClient for Client {
    /// Waits for the answer, as the exporter's thread has nothing else to do.
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answer = self.0.run(request.map(|body| body.to_vec()))?;
        let (head, mut body) = answer.into_parts();
        let body = body.with_config().limit(MAX_ANSWER).read_to_vec()?;
        Ok(Response::from_parts(head, body.into()))
    }
}

/// Makes a span of every request.
#[derive(Debug)]
struct Spans {
    tracer: SdkTracer,
    context: TraceContextPropagator,
}

impl RequestObserver for Spans {
    fn ended(&self, record: RequestRecord) {
        if record.route.as_ref().is_some_and(|route| UNTRACED.contains(&&**route)) {
            return;
        }
        let headers = [("traceparent", &record.traceparent), ("tracestate", &record.tracestate)];
        let headers = headers.into_iter().filter_map(|(name, value)| {
            value.as_ref().map(|value| (name.to_owned(), value.clone()))
        });
        let parent = self.context.extract(&headers.collect::<HashMap<_, _>>());
        let name = match &record.route {
            Some(route) => format!("{} {route}", record.method),
            None => record.method.clone(),
        };
        let builder = self.tracer.span_builder(name).with_kind(SpanKind::Server);
        let builder = builder.with_start_time(record.started).with_attributes(attributes(&record));
        let mut span = self.tracer.build_with_context(builder, &parent);
        if let Some(failure) = failure(&record) {
            span.set_status(Status::error(failure));
        }
        span.end_with_timestamp(record.started + record.duration);
    }
}

/// What the server failed with; an invalid request is not a failure of the server.
fn failure(record: &RequestRecord) -> Option<String> {
    let status = record.status.filter(|status| *status >= 500).map(|status| status.to_string());
    record.error.clone().or(status)
}

fn attributes(record: &RequestRecord) -> Vec<KeyValue> {
    let mut list = vec![
        KeyValue::new("http.request.method", record.method.clone()),
        KeyValue::new("url.path", record.path.clone()),
        KeyValue::new("gen_ai.request.id", record.id.clone()),
    ];
    let mut add = |name: &'static str, value: Option<Value>| {
        list.extend(value.map(|value| KeyValue::new(name, value)));
    };
    let text = |text: &Option<String>| text.clone().map(Value::from);
    let count = |n: usize| i64::try_from(n).ok().map(Value::from);
    add("http.route", text(&record.route));
    add("http.response.status_code", record.status.map(|status| i64::from(status).into()));
    add("error.type", failure(record).map(Value::from));
    add("gen_ai.request.model", text(&record.model));
    let operation = record.route.as_deref().and_then(operation);
    add("gen_ai.operation.name", operation.map(Value::from));
    if record.input_tokens > 0 {
        add("gen_ai.usage.input_tokens", count(record.input_tokens));
        add("gen_ai.usage.cache_read.input_tokens", count(record.cached_tokens));
        add("gen_ai.usage.output_tokens", count(record.output_tokens));
    }
    if !record.finish_reasons.is_empty() {
        let reasons = record.finish_reasons.iter().map(|&reason| reason.into()).collect();
        add("gen_ai.response.finish_reasons", Some(Value::Array(Array::String(reasons))));
    }
    let seconds = record.time_to_first_token.map(|time| time.as_secs_f64().into());
    add("gen_ai.latency.time_to_first_token", seconds);
    list
}

/// What the conventions call the work of a route.
fn operation(route: &str) -> Option<&'static str> {
    match route {
        "/v1/chat/completions" | "/v1/messages" | "/v1/responses" => Some("chat"),
        "/v1/completions" => Some("text_completion"),
        "/v1/embeddings" => Some("embeddings"),
        _ => None,
    }
}
