//! Traces of requests for OpenTelemetry, in builds with the feature `otel`. Without it, asking for
//! them is an error.

#[cfg(feature = "otel")]
mod export;

#[cfg(feature = "otel")]
pub(crate) use export::Traces;

/// What a build without the feature has in place of an exporter: there is no such value.
#[cfg(not(feature = "otel"))]
#[derive(Debug)]
pub(crate) enum Traces {}

#[cfg(not(feature = "otel"))]
impl Traces {
    pub(crate) fn start() -> anyhow::Result<Self> {
        Err(crate::ui::usage(
            "--otel: OpenTelemetry is not part of this build; build it with `--features otel`",
        ))
    }

    pub(crate) fn observer(&self) -> std::sync::Arc<dyn realizar_server::RequestObserver> {
        match *self {}
    }

    pub(crate) fn end(self) {
        match self {}
    }
}
