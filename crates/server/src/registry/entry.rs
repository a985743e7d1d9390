//! A model that is known, and the state that it is in.

use super::files::ModelFiles;
use super::keep_alive::KeepAlive;
use super::lease::ModelLease;
use super::loader::ModelSpec;
use crate::error::LoadError;
use crate::ids;
use crate::registry::served::ServedModel;
use realizar_runtime::{MemoryUse, ModelOutput};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// What becomes of a load: nothing yet, a model in use, or why there is none.
pub(super) type Outcome = Option<Result<ModelLease, LoadError>>;

/// A model that is known.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) aliases: Vec<String>,
    /// Where the loader takes it from; none of a model that came loaded.
    pub(super) source: Option<String>,
    pub(super) output: ModelOutput,
    pub(super) slot: Slot,
    /// Why the latest load failed.
    pub(super) error: Option<LoadError>,
    /// When it was used last, by the registry's own clock.
    pub(super) last_used: u64,
    /// Whether the program only offers it, so that it may go when no request uses it.
    pub(super) is_offered: bool,
    /// Whether the loader has found it, and may lose it again.
    pub(super) is_found: bool,
    /// How long it stays without a request, once it is loaded.
    pub(super) keep_alive: KeepAlive,
    /// Since when no request uses it.
    pub(super) idle_since: Option<Instant>,
    /// Its files, as far as they are on this machine.
    pub(super) files: Option<ModelFiles>,
    pub(super) created: u64,
    pub(super) counts: LoadCounts,
}

/// The state of a model.
#[derive(Debug)]
pub(super) enum Slot {
    Unloaded,
    Loading {
        outcome: watch::Receiver<Outcome>,
        /// Bytes that are kept for it, once there is room.
        booked: Option<usize>,
        /// Whether it is to be unloaded as soon as it is loaded.
        cancelled: bool,
    },
    Loaded(Loaded),
    Unloading {
        /// Turns true at its end.
        ended: watch::Receiver<bool>,
        memory: usize,
    },
}

impl Slot {
    pub(super) fn is_unloaded(&self) -> bool {
        matches!(self, Self::Unloaded)
    }
}

/// A loaded model and how many use it.
#[derive(Debug, Clone)]
pub(super) struct Loaded {
    pub(super) model: Arc<ServedModel>,
    pub(super) uses: Arc<AtomicUsize>,
}

impl Loaded {
    pub(super) fn new(model: ServedModel) -> Self {
        Self { model: Arc::new(model), uses: Arc::new(AtomicUsize::new(0)) }
    }

    pub(super) fn memory(&self) -> usize {
        self.model.engine.model().memory().total()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.uses.load(Ordering::Relaxed) == 0
    }
}

/// What was done to load a model.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct LoadCounts {
    pub(crate) loads: u64,
    pub(crate) failures: u64,
    pub(crate) unloads: u64,
    /// The time that the loads took.
    pub(crate) load_seconds: f64,
}

/// The state of a model, to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoadState {
    Unloaded,
    Loading,
    Loaded,
    Unloading,
}

/// The status of a model.
#[derive(Debug, Clone)]
pub(crate) struct ModelStatus {
    pub(crate) name: String,
    pub(crate) aliases: Vec<String>,
    pub(crate) source: Option<String>,
    pub(crate) output: ModelOutput,
    pub(crate) created: u64,
    pub(crate) state: LoadState,
    /// Why the latest load failed.
    pub(crate) error: Option<String>,
    /// The model, where it is loaded.
    pub(crate) model: Option<Arc<ServedModel>>,
    /// Its files, as far as they are on this machine.
    pub(crate) files: Option<ModelFiles>,
    /// How long it stays without a request, where it is loaded and goes by itself.
    pub(crate) stays_for: Option<Duration>,
    pub(crate) counts: LoadCounts,
}

impl ModelStatus {
    /// The memory that it takes, where it is loaded.
    pub(crate) fn memory(&self) -> Option<MemoryUse> {
        self.model.as_ref().map(|model| model.engine.model().memory())
    }
}

impl Entry {
    /// A model that the loader can load, with the path of its files if that is known.
    pub(super) fn unloaded(spec: ModelSpec, path: Option<&Path>) -> Self {
        let ModelSpec { name, aliases, source, output } = spec;
        Self {
            name,
            aliases,
            source: Some(source),
            output,
            slot: Slot::Unloaded,
            error: None,
            last_used: 0,
            is_offered: false,
            is_found: false,
            keep_alive: KeepAlive::FOREVER,
            idle_since: None,
            files: path.and_then(ModelFiles::of),
            created: ids::unix_seconds(),
            counts: LoadCounts::default(),
        }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name).chain(&self.aliases).map(String::as_str)
    }

    pub(super) fn is_named(&self, name: &str) -> bool {
        self.names().any(|n| n == name)
    }

    pub(super) fn loaded(&self) -> Option<&Loaded> {
        match &self.slot {
            Slot::Loaded(loaded) => Some(loaded),
            _ => None,
        }
    }

    /// Bytes that it takes, or that are kept for it.
    pub(super) fn memory(&self) -> usize {
        match &self.slot {
            Slot::Unloaded => 0,
            Slot::Loading { booked, .. } => booked.unwrap_or(0),
            Slot::Loaded(loaded) => loaded.memory(),
            Slot::Unloading { memory, .. } => *memory,
        }
    }

    /// Whether it counts as loaded.
    pub(super) fn has_place(&self) -> bool {
        match &self.slot {
            Slot::Unloaded => false,
            Slot::Loading { booked, .. } => booked.is_some(),
            Slot::Loaded(_) | Slot::Unloading { .. } => true,
        }
    }

    /// Whether it may be unloaded to make room: no request uses it, and it can be loaded again.
    pub(super) fn may_go(&self) -> bool {
        self.source.is_some() && self.loaded().is_some_and(Loaded::is_idle)
    }

    pub(super) fn status(&self) -> ModelStatus {
        ModelStatus {
            name: self.name.clone(),
            aliases: self.aliases.clone(),
            source: self.source.clone(),
            output: self.output,
            created: self.created,
            state: match &self.slot {
                Slot::Unloaded => LoadState::Unloaded,
                Slot::Loading { .. } => LoadState::Loading,
                Slot::Loaded(_) => LoadState::Loaded,
                Slot::Unloading { .. } => LoadState::Unloading,
            },
            error: self.error.as_ref().map(ToString::to_string),
            model: self.loaded().map(|loaded| loaded.model.clone()),
            files: self.files.clone(),
            stays_for: self.loaded().and_then(|_| self.stays_for(Instant::now())),
            counts: self.counts,
        }
    }
}
