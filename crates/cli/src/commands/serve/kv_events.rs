//! Events of the prefix cache for routers, in builds with the feature `kv-events`. Without it, asking
//! for them is an error.

use super::args::Args;
use anyhow::Result;

#[cfg(feature = "kv-events")]
pub(super) use realizar_server::KvEvents;

/// What a build without the feature has in place of the sockets: there is no such value.
#[cfg(not(feature = "kv-events"))]
pub(super) enum KvEvents {}

#[cfg(not(feature = "kv-events"))]
impl KvEvents {
    pub(super) fn sink(&self) -> realizar_runtime::engine::CacheSink {
        match *self {}
    }
}

/// Opens the sockets, if `--kv-events` asks for them.
#[cfg(feature = "kv-events")]
pub(super) async fn bind(args: &Args) -> Result<Option<KvEvents>> {
    let Some(endpoint) = args.observability.kv_events.as_deref() else { return Ok(None) };
    let config = realizar_server::KvEventsConfig {
        replay_endpoint: args.observability.kv_events_replay.clone(),
        topic: args.observability.kv_events_topic.clone(),
        ..realizar_server::KvEventsConfig::new(endpoint)
    };
    Ok(Some(KvEvents::bind(config).await?))
}

/// Refuses `--kv-events`.
#[cfg(not(feature = "kv-events"))]
pub(super) async fn bind(args: &Args) -> Result<Option<KvEvents>> {
    match args.observability.kv_events {
        None => Ok(None),
        Some(_) => Err(crate::ui::usage(
            "--kv-events: ZeroMQ is not part of this build; build it with `--features kv-events`",
        )),
    }
}
