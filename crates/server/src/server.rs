//! The server as a whole: it listens, answers until it is asked to stop, and ends its engines.

use crate::app::{self, app};
use crate::config::ServerConfig;
use crate::error::Error;
use crate::http::listen::Listener;
use crate::registry::Models;
use crate::state::AppState;
use crate::state::history;
use axum::Router;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinError;

/// How long connections may take to hear the end of their answers once the engines have ended.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// A server that listens and does not answer yet.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    app: Router,
    state: AppState,
}

impl Server {
    /// Begins to listen; connections wait until [`Self::run`]. Models may also be added later,
    /// through [`AppState::models`]; until there is one, the server is not ready.
    ///
    /// # Errors
    /// If a setting or a file for TLS cannot be used, or the address cannot be listened on.
    pub async fn bind(config: ServerConfig, models: Models) -> Result<Self, Error> {
        let listener = Listener::bind(&config).await?;
        let is_local = listener.address().ip().is_loopback();
        let state = AppState::reachable(config, models, is_local);
        Ok(Self { listener, app: app(state.clone())?, state })
    }

    /// Where it listens; the port is the real one where the settings left it open.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// The state that handlers are given.
    pub fn state(&self) -> &AppState {
        &self.state
    }

    /// Answers until `shutdown` is ready. Then it takes no new requests, lets those that run end
    /// within the time that the settings give them, cancels the others, and returns.
    ///
    /// # Errors
    /// If the loop that accepts connections fails, which is a defect.
    pub async fn run(
        self,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        let (stop, stopped) = watch::channel(false);
        let serving = self.listener.serve(self.app, app::full(self.state.clone()), stopped);
        let mut serving = tokio::spawn(serving);
        let models = self.state.models().clone();
        tokio::select! {
            result = &mut serving => return ended(result),
            () = shutdown => {}
            () = history::keep(&self.state) => {}
            () = models.unload_idle() => {}
        }
        self.state.close();
        let _ = stop.send(true);
        let grace = self.state.config().shutdown_grace;
        tokio::join!(end_engines(&self.state, grace), self.state.tool_calls().end(grace));
        match tokio::time::timeout(LAST_WORDS, &mut serving).await {
            Ok(result) => ended(result),
            Err(_) => {
                tracing::warn!("dropping connections that do not read their answers");
                serving.abort();
                Ok(())
            }
        }
    }
}

/// How the task that accepts connections ended.
fn ended(result: Result<(), JoinError>) -> Result<(), Error> {
    result.map_err(|error| Error::Listen(error.into()))
}

/// Ends all engines at once, and waits for the last one; for loads, which cannot be ended, only
/// for a while.
async fn end_engines(state: &AppState, grace: Duration) {
    let models = state.models().all().into_iter();
    let ends: Vec<_> = models
        .map(|model| tokio::task::spawn_blocking(move || model.engine.shutdown(grace)))
        .collect();
    for end in ends {
        if let Err(error) = end.await {
            tracing::error!("an engine did not shut down cleanly: {error}");
        }
    }
    let models = state.models().clone();
    let settled = tokio::task::spawn_blocking(move || models.wait_settled(LAST_WORDS)).await;
    if !settled.unwrap_or(true) {
        tracing::warn!("a model is still being loaded or unloaded; not waiting for it");
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
