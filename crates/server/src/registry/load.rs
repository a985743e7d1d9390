//! Loading: one load of a model at a time, whose outcome all who wait for it share.

use super::entry::{Loaded, Outcome, Slot};
use super::files::ModelFiles;
use super::keep_alive::KeepAlive;
use super::lease::ModelLease;
use super::room::Room;
use super::{Inner, Models, Pick, Registry, Seized};
use crate::error::LoadError;
use crate::registry::served::ServedModel;
use realizar_runtime::panics;
use std::error::Error;
use std::sync::{Arc, PoisonError};
use std::time::Instant;
use tokio::sync::watch;

/// Waits for a load.
pub(super) async fn finished(
    mut outcome: watch::Receiver<Outcome>,
) -> Result<ModelLease, LoadError> {
    let result = match outcome.wait_for(Option::is_some).await {
        Ok(outcome) => outcome.clone(),
        Err(_) => None,
    };
    // A load reports its outcome whatever happens, unless the process ends.
    result.unwrap_or(Err(LoadError::Closed))
}

/// That the loader failed, with all causes.
pub(super) fn failed(name: &str, error: Box<dyn Error + Send + Sync>) -> LoadError {
    let mut reason = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !reason.ends_with(&text) {
            reason = format!("{reason}: {text}");
        }
        cause = error.source();
    }
    LoadError::Failed { name: name.to_owned(), reason, error: Arc::from(error) }
}

fn panicked(name: &str, panic: &str) -> LoadError {
    failed(name, format!("the loader panicked: {panic}").into())
}

impl Inner {
    /// The model is being loaded from now on.
    fn mark_loading(&mut self, idx: usize) -> (watch::Sender<Outcome>, watch::Receiver<Outcome>) {
        let (sender, outcome) = watch::channel(None);
        let entry = &mut self.entries[idx];
        entry.keep_alive = if entry.is_offered { self.keep_alive } else { KeepAlive::FOREVER };
        entry.idle_since = None;
        entry.slot = Slot::Loading { outcome: outcome.clone(), booked: None, cancelled: false };
        (sender, outcome)
    }
}

impl Registry {
    /// Begins to load an unloaded model, on a thread of its own.
    pub(super) fn begin_load(
        self: &Arc<Self>,
        inner: &mut Inner,
        idx: usize,
    ) -> Result<watch::Receiver<Outcome>, LoadError> {
        let name = inner.entries[idx].name.clone();
        let (sender, outcome) = inner.mark_loading(idx);
        let (registry, of_thread) = (self.clone(), name.clone());
        let thread = std::thread::Builder::new().name("load".to_owned());
        let spawned = thread.spawn(move || {
            let result = registry.load(&of_thread, Room::Make);
            // A load at the start is reported by its caller.
            if let Err(error) = &result
                && error.is_failure()
            {
                tracing::error!(model = of_thread, "{error}");
            }
            // Everyone who waited may have left.
            let _ = sender.send(Some(result));
        });
        match spawned {
            Ok(_) => Ok(outcome),
            Err(error) => {
                inner.entries[idx].slot = Slot::Unloaded;
                Err(failed(&name, error.into()))
            }
        }
    }

    /// Loads a model that is marked as being loaded, and ends that state.
    fn load(self: &Arc<Self>, name: &str, room: Room) -> Result<ModelLease, LoadError> {
        let start = Instant::now();
        let result = panics::caught(|| self.run_loader(name, room));
        let result = result.unwrap_or_else(|panic| Err(panicked(name, &panic)));
        let mut dropped = None; // not under the lock: an engine's end takes time
        let mut loaded_model = None;
        let mut inner = self.lock();
        let result = inner.settle(name, result, self.config.memory_limit, &mut dropped);
        let Some(entry) = inner.entry(name) else {
            drop(inner);
            return Err(LoadError::Closed);
        };
        let result = match result {
            Ok(loaded) => {
                let (lease, seconds) = (self.lease(&loaded), start.elapsed().as_secs_f64());
                loaded_model = Some(loaded.model.clone());
                entry.files = ModelFiles::of(loaded.model.engine.model().path());
                entry.slot = Slot::Loaded(loaded);
                entry.error = None;
                entry.counts.loads += 1;
                entry.counts.load_seconds += seconds;
                inner.touch(name);
                tracing::info!(model = name, seconds, "loaded");
                Ok(lease)
            }
            Err(error) => {
                entry.slot = Slot::Unloaded;
                if error.is_failure() {
                    entry.counts.failures += 1;
                }
                entry.error = error.is_failure().then(|| error.clone());
                Err(error)
            }
        };
        drop(inner);
        drop(dropped);
        if let Some(model) = &loaded_model {
            self.unload_on_failure(model);
        }
        self.changed.notify_all();
        result
    }

    /// Finds room, and has the loader load the model.
    fn run_loader(&self, name: &str, room: Room) -> Result<ServedModel, LoadError> {
        let Some(loader) = &self.loader else {
            return Err(LoadError::NoSource { name: name.to_owned() });
        };
        let needed = loader.memory(name).map_err(|error| failed(name, error))?;
        self.find_room(name, needed.total(), room)?;
        loader.load(name).map_err(|error| failed(name, error))
    }
}

impl Inner {
    /// A model that was loaded becomes one that may be used, unless it may no longer be used.
    fn settle(
        &mut self,
        name: &str,
        result: Result<ServedModel, LoadError>,
        limit: Option<usize>,
        dropped: &mut Option<ServedModel>,
    ) -> Result<Loaded, LoadError> {
        let mut model = result?;
        let closed = self.closed;
        let others = self.entries.iter().filter(|entry| entry.name != name);
        let others = others.map(super::Entry::memory).fold(0, usize::saturating_add);
        let needed = model.engine.model().memory().total();
        let refusal = match self.entry(name).map(|entry| &entry.slot) {
            _ if closed => Some(LoadError::Closed),
            None => Some(LoadError::Closed),
            Some(Slot::Loading { cancelled: true, .. }) => {
                Some(LoadError::Cancelled { name: name.to_owned() })
            }
            // A device other than the expected one may have taken it.
            Some(_) => limit
                .filter(|&limit| needed.saturating_add(others) > limit)
                .map(|limit| LoadError::TooLarge { name: name.to_owned(), needed, limit }),
        };
        if let Some(refusal) = refusal {
            *dropped = Some(model);
            return Err(refusal);
        }
        let entry = self.entry(name).ok_or(LoadError::Closed)?;
        model.name = entry.name.clone();
        model.aliases = entry.aliases.clone();
        Ok(Loaded::new(model))
    }
}

impl Models {
    /// Loads these models one after the other, on this thread, as far as there is room for them
    /// beside each other. Then the server is ready; the others are loaded when they are requested.
    ///
    /// # Errors
    /// If one cannot be loaded, would not fit alone, or is not known.
    pub fn preload(&self, names: &[impl AsRef<str>]) -> Result<(), LoadError> {
        for name in names.iter().map(AsRef::as_ref) {
            match self.load_here(name) {
                Ok(_) => {}
                Err(LoadError::Busy { .. }) => {
                    tracing::info!(model = name, "stays unloaded: there is no room for it now");
                }
                Err(error) => return Err(error),
            }
        }
        self.0.lock().started = true;
        Ok(())
    }

    /// Loads a model on this thread, unless it is loaded, in room that is free.
    fn load_here(&self, name: &str) -> Result<ModelLease, LoadError> {
        let registry = &self.0;
        let mut inner = registry.lock();
        loop {
            let idx = inner.find(Pick::Named(name));
            let idx = idx.ok_or_else(|| LoadError::NotFound { name: name.to_owned() })?;
            match &inner.entries[idx].slot {
                Slot::Loaded(loaded) => return Ok(registry.lease(loaded)),
                Slot::Unloaded => {
                    let name = inner.entries[idx].name.clone();
                    let (sender, _) = inner.mark_loading(idx);
                    drop(inner);
                    let result = registry.load(&name, Room::Free);
                    // Requests may wait for it, too.
                    let _ = sender.send(Some(result.clone()));
                    return result;
                }
                Slot::Loading { .. } | Slot::Unloading { .. } => {
                    let waited = registry.changed.wait(inner);
                    inner = waited.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Begins to load the model with this name or alias, which then stays until it has to make room or is
    /// unloaded. With `wait`, returns when it is loaded.
    pub(crate) async fn load(&self, name: &str, wait: bool) -> Result<(), LoadError> {
        let seized = match self.0.seize(Pick::Named(name), true)? {
            Seized::Ready(lease) => return Err(LoadError::Loaded { name: lease.name.clone() }),
            Seized::Unloading(mut ended) => {
                // A sender that is gone has ended as well.
                let _ = ended.wait_for(|&ended| ended).await;
                self.0.seize(Pick::Named(name), true)?
            }
            seized => seized,
        };
        self.keep_alive(name, KeepAlive::FOREVER)?;
        match seized {
            Seized::Loading(outcome) if wait => finished(outcome).await.map(drop),
            _ => Ok(()),
        }
    }
}
