//! What all handlers share: the settings, the models, and whether the server is closing.

pub(crate) mod history;
mod shares;
pub(crate) mod stored;
mod tool_calls;

use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::hosts::Hosts;
use crate::record;
use crate::registry::{ModelLease, Models, Pick};
use realizar_runtime::ModelOutput;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::Semaphore;

use history::History;
use shares::Shares;
use stored::Stored;
use tool_calls::ToolCalls;

/// What handlers are given; a handle on one shared value.
#[derive(Debug, Clone)]
pub struct AppState(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    config: ServerConfig,
    models: Models,
    /// Whether only programs of this machine reach the server.
    is_local: bool,
    /// Which hosts and origins are answered, where that is limited.
    hosts: OnceLock<Hosts>,
    closing: AtomicBool,
    /// Bytes of bodies that there is room for.
    bodies: Arc<Semaphore>,
    /// The part of this room that the bodies of one address may take.
    shares: Shares,
    /// Numbers of the last hour.
    history: History,
    /// What requests asked to keep.
    stored: Stored,
    tool_calls: ToolCalls,
}

/// Bytes of room for bodies; a single one always has some.
fn room(config: &ServerConfig) -> usize {
    let room = config.limits.bodies_bytes.max(config.limits.body_bytes);
    room.min(Semaphore::MAX_PERMITS)
}

/// Bytes of room for the bodies of one address: others have room for at least one, or half of it all.
fn share(config: &ServerConfig) -> usize {
    let room = room(config);
    room.saturating_sub(config.limits.body_bytes)
        .max(room / 2)
        .max(config.limits.body_bytes)
        .min(room)
}

impl AppState {
    /// The state of a server that others may reach.
    pub fn new(config: ServerConfig, models: Models) -> Self {
        Self::reachable(config, models, false)
    }

    /// The state of a server; `is_local` says that it listens to this machine alone.
    pub(crate) fn reachable(config: ServerConfig, models: Models, is_local: bool) -> Self {
        let bodies = Arc::new(Semaphore::new(room(&config)));
        let shares = Shares::new(share(&config));
        let (closing, hosts) = (AtomicBool::new(false), OnceLock::new());
        let history = History::default();
        let limits = &config.limits;
        let stored = Stored::new(limits.stored_responses, limits.stored_bytes);
        let tool_calls = ToolCalls::default();
        Self(Arc::new(Shared {
            config,
            models,
            is_local,
            hosts,
            closing,
            bodies,
            shares,
            history,
            stored,
            tool_calls,
        }))
    }

    /// The settings.
    pub fn config(&self) -> &ServerConfig {
        &self.0.config
    }

    /// The models.
    pub fn models(&self) -> &Models {
        &self.0.models
    }

    /// Bytes of all the room for bodies.
    pub(crate) fn room(&self) -> usize {
        room(self.config())
    }

    /// Room for bodies that are worked on, in bytes.
    pub(crate) fn bodies(&self) -> &Arc<Semaphore> {
        &self.0.bodies
    }

    /// The room for bodies of each address.
    pub(crate) fn shares(&self) -> &Shares {
        &self.0.shares
    }

    /// Numbers of the last hour.
    pub(crate) fn history(&self) -> &History {
        &self.0.history
    }

    /// What requests asked to keep.
    pub(crate) fn stored(&self) -> &Stored {
        &self.0.stored
    }

    /// Whether only programs of this machine reach the server.
    pub(crate) fn is_local(&self) -> bool {
        self.0.is_local
    }

    /// Limits the hosts and origins that are answered; once.
    pub(crate) fn limit_hosts(&self, hosts: Hosts) {
        self.0.hosts.get_or_init(|| hosts);
    }

    /// The hosts and origins that are answered, where that is limited.
    pub(crate) fn hosts(&self) -> Option<&Hosts> {
        self.0.hosts.get()
    }

    /// Whether the server is about to end.
    pub fn is_closing(&self) -> bool {
        self.0.closing.load(Ordering::Relaxed)
    }

    /// The calls of tools that run.
    pub(crate) fn tool_calls(&self) -> &ToolCalls {
        &self.0.tool_calls
    }

    /// From now on the server is not ready, and new requests are refused.
    pub(crate) fn close(&self) {
        self.0.closing.store(true, Ordering::Relaxed);
        self.models().close();
    }

    /// The model that a request names, or the first one if it names none. If it is not loaded, it
    /// is loaded first.
    pub(crate) async fn model(&self, name: Option<&str>) -> Result<ModelLease, ApiError> {
        self.lease(name.map_or(Pick::First, Pick::of_name)).await
    }

    /// As [`Self::model`]; without a name, the first model with this output.
    pub(crate) async fn model_for(
        &self,
        output: ModelOutput,
        name: Option<&str>,
    ) -> Result<ModelLease, ApiError> {
        match name.map_or(Pick::First, Pick::of_name) {
            Pick::First => self.lease(Pick::FirstFor(output)).await,
            named => self.lease(named).await,
        }
    }

    async fn lease(&self, pick: Pick<'_>) -> Result<ModelLease, ApiError> {
        let lease = self.models().acquire(pick);
        let model = match self.config().request_timeout {
            None => lease.await?,
            Some(limit) => match tokio::time::timeout(limit, lease).await {
                Ok(lease) => lease?,
                // A load that continues serves later requests.
                Err(_) => return Err(ApiError::timeout(limit)),
            },
        };
        if let Some(recorder) = record::current() {
            recorder.note(|record| record.model = Some(model.name.clone()));
        }
        Ok(model)
    }
}
