//! The models by name: which there are, which of them are loaded, and which go when there is no
//! room for all.
//!
//! One lock guards the list, and is held for moments only. Loads run on threads of their own
//! (`load`), as do unloads that wait for requests (`unload`); waiting for one means waiting for its
//! outcome. A request holds a lease (`lease`) on its model, without which the model may go.

mod cards;
mod entry;
mod files;
mod keep_alive;
mod lease;
mod load;
mod loader;
mod room;
pub(crate) mod served;
pub(crate) mod slots;
mod unload;

pub(crate) use cards::Known;
pub(crate) use entry::{LoadState, ModelStatus};
pub(crate) use files::FileFormat;
pub use keep_alive::{KeepAlive, NoDuration};
pub(crate) use lease::ModelLease;
pub use loader::{ModelLoader, ModelSpec, ModelsConfig};

use crate::error::{Error, LoadError};
use crate::registry::served::ServedModel;
use cards::Cards;
use entry::{Entry, LoadCounts, Loaded, Outcome, Slot};
use files::ModelFiles;
use realizar_runtime::ModelOutput;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};

/// The models that are served, in the order in which they were added. The first one answers
/// requests that name none. A clone is a further handle on the same models.
#[derive(Clone)]
pub struct Models(Arc<Registry>);

/// What all handles share.
struct Registry {
    loader: Option<Box<dyn ModelLoader>>,
    config: ModelsConfig,
    inner: Mutex<Inner>,
    /// Of models that are not loaded.
    cards: Cards,
    /// Told of every change that someone may wait for under the lock.
    changed: Condvar,
    /// Told when a model becomes idle, or its time is another one.
    idle: Notify,
    /// Turns true when the server ends.
    closed: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Inner {
    entries: Vec<Entry>,
    clock: u64,
    /// How long models stay that are only offered.
    keep_alive: KeepAlive,
    /// Whether the models that are loaded at the start are there.
    started: bool,
    closed: bool,
}

/// Which model is wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pick<'a> {
    Named(&'a str),
    /// The first one.
    First,
    /// The first one with this output, or the first one.
    FirstFor(ModelOutput),
}

impl<'a> Pick<'a> {
    /// The model of this name; an empty one is none.
    pub(crate) fn of_name(name: &'a str) -> Self {
        if name.is_empty() { Self::First } else { Self::Named(name) }
    }
}

/// A model, or what there is to wait for.
enum Seized {
    Ready(ModelLease),
    Loading(watch::Receiver<Outcome>),
    Unloading(watch::Receiver<bool>),
}

impl Inner {
    fn find(&self, pick: Pick<'_>) -> Option<usize> {
        let first = || (!self.entries.is_empty()).then_some(0);
        match pick {
            Pick::Named(name) => self.entries.iter().position(|entry| entry.is_named(name)),
            Pick::First => first(),
            Pick::FirstFor(output) => {
                self.entries.iter().position(|entry| entry.output == output).or_else(first)
            }
        }
    }

    fn entry(&mut self, name: &str) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.name == name)
    }

    /// The model of this name is used now.
    fn touch(&mut self, name: &str) {
        self.clock += 1;
        let now = self.clock;
        if let Some(entry) = self.entry(name) {
            entry.last_used = now;
        }
    }

    fn push(&mut self, entry: Entry) -> Result<(), Error> {
        let taken = |name: &str| self.entries.iter().any(|other| other.is_named(name));
        if let Some(name) = entry.names().find(|name| taken(name)) {
            return Err(Error::Name { name: name.to_owned() });
        }
        self.entries.push(entry);
        Ok(())
    }
}

impl Inner {
    /// The models that the loader has found now, in place of those that it had found before.
    fn set_found(&mut self, found: Vec<(ModelSpec, Option<PathBuf>)>) {
        let is_found = |entry: &Entry| found.iter().any(|(spec, _)| spec.name == entry.name);
        self.entries.retain(|e| !e.is_found || !e.slot.is_unloaded() || is_found(e));
        for (spec, path) in found {
            let new = Entry::unloaded(spec, path.as_deref());
            // A name that is taken is another model's, or was found before.
            let _ = self.push(Entry { is_offered: true, is_found: true, ..new });
        }
    }
}

impl Registry {
    /// Has the loader look for further models.
    fn discover(&self) {
        let Some(loader) = &self.loader else { return };
        let found = loader.discover().into_iter().map(|spec| {
            let path = loader.path(&spec.name);
            (spec, path)
        });
        let found = found.collect();
        self.lock().set_found(found);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change is complete before anything that could panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits under the lock for a change, at most until `deadline`; false when that is past.
    fn wait<'a>(
        &self,
        inner: MutexGuard<'a, Inner>,
        deadline: Instant,
    ) -> (MutexGuard<'a, Inner>, bool) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return (inner, false);
        }
        let waited = self.changed.wait_timeout(inner, left);
        (waited.unwrap_or_else(PoisonError::into_inner).0, true)
    }

    /// A lease on a loaded model.
    fn lease(self: &Arc<Self>, loaded: &Loaded) -> ModelLease {
        loaded.uses.fetch_add(1, Ordering::Relaxed);
        ModelLease::counted(loaded.model.clone(), loaded.uses.clone(), self.clone())
    }

    /// The wanted model, or what to wait for; begins to load it if `load` says so.
    fn seize(self: &Arc<Self>, pick: Pick<'_>, load: bool) -> Result<Seized, LoadError> {
        if self.lock().find(pick).is_none() {
            self.discover();
        }
        let mut inner = self.lock();
        if inner.closed {
            return Err(LoadError::Closed);
        }
        let found = inner.find(pick).ok_or_else(|| match pick {
            Pick::Named(name) => LoadError::NotFound { name: name.to_owned() },
            _ => LoadError::NoModels,
        });
        let idx = found?;
        let entry = &inner.entries[idx];
        Ok(match &entry.slot {
            Slot::Loading { outcome, .. } => Seized::Loading(outcome.clone()),
            Slot::Unloading { ended, .. } => Seized::Unloading(ended.clone()),
            Slot::Unloaded if load => Seized::Loading(self.begin_load(&mut inner, idx)?),
            Slot::Unloaded => return Err(LoadError::NotLoaded { name: entry.name.clone() }),
            Slot::Loaded(loaded) => {
                let (lease, name) = (self.lease(loaded), entry.name.clone());
                inner.touch(&name);
                Seized::Ready(lease)
            }
        })
    }
}

impl Models {
    /// No models, and nothing that could load any: those that are added stay.
    pub fn new() -> Self {
        Self::make(None, ModelsConfig::default(), true)
    }

    /// Models that `loader` loads when they are wanted. The server is ready once
    /// [`Self::preload`] is done.
    pub fn with_loader(loader: impl ModelLoader + 'static, config: ModelsConfig) -> Self {
        Self::make(Some(Box::new(loader)), config, false)
    }

    fn make(loader: Option<Box<dyn ModelLoader>>, config: ModelsConfig, started: bool) -> Self {
        let inner = Inner { started, keep_alive: config.keep_alive, ..Inner::default() };
        let (inner, changed, idle) = (Mutex::new(inner), Condvar::new(), Notify::new());
        let (closed, _) = watch::channel(false);
        let cards = Cards::default();
        Self(Arc::new(Registry { loader, config, inner, cards, changed, idle, closed }))
    }

    /// Makes a model known that the loader can load. Once it is loaded, it stays until it has to make room or is
    /// unloaded.
    ///
    /// # Errors
    /// If one of its names is taken, or there is no loader.
    pub fn configure(&self, spec: ModelSpec) -> Result<(), Error> {
        self.know(spec, false)
    }

    /// As [`Self::configure`]. A request that loads it has it stay as long as [`ModelsConfig::keep_alive`] says.
    ///
    /// # Errors
    /// As for [`Self::configure`].
    pub fn offer(&self, spec: ModelSpec) -> Result<(), Error> {
        self.know(spec, true)
    }

    fn know(&self, spec: ModelSpec, is_offered: bool) -> Result<(), Error> {
        let Some(loader) = &self.0.loader else {
            let reason = format!("no loader for `{}`", spec.name);
            return Err(Error::Config { setting: "models", reason });
        };
        let path = loader.path(&spec.name);
        self.0.lock().push(Entry { is_offered, ..Entry::unloaded(spec, path.as_deref()) })
    }

    /// Whether there may be models although none is known.
    pub(crate) fn has_loader(&self) -> bool {
        self.0.loader.is_some()
    }

    /// Adds a loaded model, which stays until it is removed.
    ///
    /// # Errors
    /// If one of its names is taken.
    pub fn add(&self, model: ServedModel) -> Result<Arc<ServedModel>, Error> {
        let loaded = Loaded::new(model);
        let model = loaded.model.clone();
        self.0.lock().push(Entry {
            name: model.name.clone(),
            aliases: model.aliases.clone(),
            source: None,
            output: model.engine.model().output(),
            files: ModelFiles::of(model.engine.model().path()),
            slot: Slot::Loaded(loaded),
            error: None,
            last_used: 0,
            is_offered: false,
            is_found: false,
            keep_alive: KeepAlive::FOREVER,
            idle_since: None,
            created: model.created,
            counts: LoadCounts::default(),
        })?;
        Ok(model)
    }

    /// Removes the loaded model with this name or alias, so that it is unknown from then on.
    /// Requests that run keep it.
    pub fn remove(&self, name: &str) -> Option<Arc<ServedModel>> {
        let mut inner = self.0.lock();
        let idx = inner.find(Pick::Named(name))?;
        let model = inner.entries[idx].loaded()?.model.clone();
        inner.entries.remove(idx);
        Some(model)
    }

    /// The model with this name or alias, if it is loaded.
    pub fn get(&self, name: &str) -> Option<Arc<ServedModel>> {
        let inner = self.0.lock();
        let idx = inner.find(Pick::Named(name))?;
        inner.entries[idx].loaded().map(|loaded| loaded.model.clone())
    }

    /// All loaded models.
    pub fn all(&self) -> Vec<Arc<ServedModel>> {
        let inner = self.0.lock();
        inner.entries.iter().filter_map(|e| e.loaded()).map(|l| l.model.clone()).collect()
    }

    /// All models, loaded or not.
    pub(crate) fn statuses(&self) -> Vec<ModelStatus> {
        self.0.discover();
        self.0.lock().entries.iter().map(Entry::status).collect()
    }

    /// The model with this name or alias, loaded or not.
    pub(crate) fn status(&self, name: &str) -> Option<ModelStatus> {
        let find = || {
            let inner = self.0.lock();
            inner.find(Pick::Named(name)).map(|idx| inner.entries[idx].status())
        };
        find().or_else(|| {
            self.0.discover();
            find()
        })
    }

    /// Why none of the models that the program names can answer: their latest loads failed, or their engines
    /// did. `None` if one can, or none is named.
    pub(crate) fn defects(&self) -> Option<Vec<String>> {
        let defect = |entry: &Entry| match &entry.slot {
            Slot::Unloaded => entry.error.as_ref().map(ToString::to_string),
            Slot::Loaded(_) | Slot::Loading { .. } | Slot::Unloading { .. } => None,
        };
        let inner = self.0.lock();
        let mut named = inner.entries.iter().filter(|entry| !entry.is_offered).peekable();
        named.peek()?;
        named.map(defect).collect()
    }

    pub(crate) fn config(&self) -> &ModelsConfig {
        &self.0.config
    }

    /// Whether the models that are loaded at the start are there.
    pub(crate) fn is_started(&self) -> bool {
        self.0.lock().started
    }

    /// The wanted model, for a request: loaded first if it is not and requests may load models.
    pub(crate) async fn acquire(&self, pick: Pick<'_>) -> Result<ModelLease, LoadError> {
        let mut closed = self.0.closed.subscribe();
        loop {
            match self.0.seize(pick, self.0.config.autoload)? {
                Seized::Ready(lease) => return Ok(lease),
                Seized::Loading(outcome) => {
                    return tokio::select! {
                        result = load::finished(outcome) => result,
                        _ = closed.wait_for(|&closed| closed) => Err(LoadError::Closed),
                    };
                }
                Seized::Unloading(mut ended) => tokio::select! {
                    // A sender that is gone has ended as well.
                    _ = ended.wait_for(|&ended| ended) => {}
                    _ = closed.wait_for(|&closed| closed) => return Err(LoadError::Closed),
                },
            }
        }
    }

    /// From now on no model is given to a request and none is loaded; waiting requests fail.
    pub(crate) fn close(&self) {
        self.0.lock().closed = true;
        self.0.changed.notify_all();
        self.0.closed.send_replace(true);
    }

    /// Waits until no model is being loaded or unloaded, at most for `limit`. False if one is.
    pub(crate) fn wait_settled(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut inner = self.0.lock();
        loop {
            let moves = |e: &Entry| matches!(e.slot, Slot::Loading { .. } | Slot::Unloading { .. });
            if !inner.entries.iter().any(moves) {
                return true;
            }
            let in_time;
            (inner, in_time) = self.0.wait(inner, deadline);
            if !in_time {
                return false;
            }
        }
    }
}

impl Default for Models {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Models {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Models")
            .field("config", &self.0.config)
            .field("entries", &self.0.lock().entries)
            .finish_non_exhaustive()
    }
}
