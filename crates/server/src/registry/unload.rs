//! Unloading: requests end or are cancelled, then the engine ends and its memory is free.

use super::entry::{Loaded, Slot};
use super::load::failed;
use super::{Inner, Models, Pick, Registry};
use crate::error::LoadError;
use crate::registry::served::ServedModel;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// A model that is on its way out. It has to be given to [`Registry::end`].
pub(super) struct Ending {
    loaded: Loaded,
    ended: watch::Sender<bool>,
}

impl Ending {
    pub(super) fn name(&self) -> &str {
        &self.loaded.model.name
    }
}

impl Inner {
    /// Closes a loaded model to new requests.
    pub(super) fn begin_unload(&mut self, name: &str) -> Option<Ending> {
        let entry = self.entry(name)?;
        let loaded = entry.loaded()?.clone();
        let (sender, ended) = watch::channel(false);
        entry.slot = Slot::Unloading { ended, memory: loaded.memory() };
        Some(Ending { loaded, ended: sender })
    }
}

impl Registry {
    /// Unloads a model when its engine ends by itself, so that others have its memory and the next
    /// request reloads it.
    pub(super) fn unload_on_failure(self: &Arc<Self>, model: &Arc<ServedModel>) {
        let (registry, failed_model) = (Arc::downgrade(self), Arc::downgrade(model));
        model.engine.on_failure(move |reason| {
            let (Some(registry), Some(model)) = (registry.upgrade(), failed_model.upgrade()) else {
                return;
            };
            let name = model.name.clone();
            let mut inner = registry.lock();
            let is_same = |loaded: &Loaded| Arc::ptr_eq(&loaded.model, &model);
            let is_loaded = inner.entry(&name).and_then(|e| e.loaded()).is_some_and(is_same);
            if inner.closed || !is_loaded {
                return;
            }
            let Some(ending) = inner.begin_unload(&name) else { return };
            if let Some(entry) = inner.entry(&name) {
                entry.error = Some(failed(&name, reason.into()));
            }
            drop((inner, model));
            // This is the engine's thread, whose end has to be waited for.
            let thread = std::thread::Builder::new().name("unload".to_owned());
            let spawned = thread.spawn(move || registry.end(ending, Duration::ZERO));
            if let Err(error) = spawned {
                tracing::error!(model = name, "it cannot be unloaded: {error}");
            }
        });
    }

    /// Waits for the model's requests, at most for `grace`, cancels the others and ends its
    /// engine, which gives the memory back.
    pub(super) fn end(&self, ending: Ending, grace: Duration) {
        let Ending { loaded, ended } = ending;
        let deadline = Instant::now() + grace;
        let mut inner = self.lock();
        while !loaded.is_idle() {
            let in_time;
            (inner, in_time) = self.wait(inner, deadline);
            if !in_time {
                break;
            }
        }
        drop(inner);
        let name = loaded.model.name.clone();
        loaded.model.engine.shutdown(Duration::ZERO);
        drop(loaded);
        let mut inner = self.lock();
        if let Some(entry) = inner.entry(&name) {
            entry.slot = Slot::Unloaded;
            entry.counts.unloads += 1;
        }
        drop(inner);
        tracing::info!(model = name, "unloaded");
        self.changed.notify_all();
        // Nobody may wait for it.
        let _ = ended.send(true);
    }
}

impl Models {
    /// Unloads the model with this name or alias: requests that run continue within the time that
    /// the settings give them. With `wait`, returns when it is gone. A load in progress is abandoned.
    pub(crate) async fn unload(&self, name: &str, wait: bool) -> Result<(), LoadError> {
        let (registry, grace) = (self.0.clone(), self.0.config.unload_grace);
        let ending = {
            let mut inner = registry.lock();
            let idx = inner.find(Pick::Named(name));
            let idx = idx.ok_or_else(|| LoadError::NotFound { name: name.to_owned() })?;
            let entry = &mut inner.entries[idx];
            let name = entry.name.clone();
            if entry.source.is_none() {
                return Err(LoadError::NoSource { name });
            }
            if let Slot::Loading { cancelled, .. } = &mut entry.slot {
                *cancelled = true;
                drop(inner);
                registry.changed.notify_all();
                return Ok(());
            }
            inner.begin_unload(&name).ok_or(LoadError::NotLoaded { name })?
        };
        let ended = tokio::task::spawn_blocking(move || registry.end(ending, grace));
        if wait && ended.await.is_err() {
            return Err(LoadError::Closed);
        }
        Ok(())
    }
}
