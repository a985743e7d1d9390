//! A model that is known, and the state that it is in.

use super::lease::ModelLease;
use crate::error::LoadError;
use crate::registry::served::ServedModel;
use realizar_runtime::{MemoryUse, ModelOutput};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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
    pub(crate) counts: LoadCounts,
}

impl ModelStatus {
    /// The memory that it takes, where it is loaded.
    pub(crate) fn memory(&self) -> Option<MemoryUse> {
        self.model.as_ref().map(|model| model.engine.model().memory())
    }
}

impl Entry {
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
            counts: self.counts,
        }
    }
}
