//! Room for a further model: what may be loaded together, and which model is unloaded first.

use super::entry::Slot;
use super::unload::Ending;
use super::{Inner, ModelsConfig, Registry};
use crate::error::LoadError;
use std::time::{Duration, Instant};

/// What a load may do to find room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// Take what is free.
    Free,
    /// Let idle models go, and wait for some to become idle.
    Make,
}

impl Inner {
    /// Bytes and models beyond what is allowed, if a model of `needed` bytes came as well. Models
    /// that are going do not count if `without_going` says so.
    fn excess(&self, needed: usize, config: &ModelsConfig, without_going: bool) -> (usize, usize) {
        let goes = |slot: &Slot| without_going && matches!(slot, Slot::Unloading { .. });
        let there = || self.entries.iter().filter(|entry| entry.has_place() && !goes(&entry.slot));
        let bytes = there().map(super::Entry::memory).fold(needed, usize::saturating_add);
        let models = there().count() + 1;
        (
            config.memory_limit.map_or(0, |limit| bytes.saturating_sub(limit)),
            config.max_loaded.map_or(0, |most| models.saturating_sub(most)),
        )
    }

    /// The names of idle models that would make room if they went, the least recently used first.
    /// None if all of them are not enough; empty if those that are going already are.
    fn victims(&self, needed: usize, config: &ModelsConfig) -> Option<Vec<String>> {
        let (mut bytes, mut models) = self.excess(needed, config, true);
        let mut idle: Vec<_> = self.entries.iter().filter(|entry| entry.may_go()).collect();
        idle.sort_by_key(|entry| entry.last_used);
        let mut names = Vec::new();
        for entry in idle {
            if (bytes, models) == (0, 0) {
                break;
            }
            bytes = bytes.saturating_sub(entry.memory());
            models = models.saturating_sub(1);
            names.push(entry.name.clone());
        }
        ((bytes, models) == (0, 0)).then_some(names)
    }
}

impl Registry {
    /// Books `needed` bytes for the model `name`, which is being loaded. Idle models go for it,
    /// but only if that is enough; until then it waits for models that are in use, for a bounded
    /// time.
    pub(super) fn find_room(&self, name: &str, needed: usize, room: Room) -> Result<(), LoadError> {
        if let Some(limit) = self.config.memory_limit.filter(|&limit| needed > limit) {
            return Err(LoadError::TooLarge { name: name.to_owned(), needed, limit });
        }
        let patience = match room {
            Room::Free => Duration::ZERO,
            Room::Make => self.config.room_wait,
        };
        let deadline = Instant::now() + patience;
        let mut inner = self.lock();
        loop {
            if inner.closed {
                return Err(LoadError::Closed);
            }
            let slot = inner.entry(name).map(|entry| &entry.slot);
            if let None | Some(Slot::Loading { cancelled: true, .. }) = slot {
                return Err(LoadError::Cancelled { name: name.to_owned() });
            }
            if inner.excess(needed, &self.config, false) == (0, 0) {
                if let Some(Slot::Loading { booked, .. }) = inner.entry(name).map(|e| &mut e.slot) {
                    *booked = Some(needed);
                }
                return Ok(());
            }
            if room == Room::Make
                && let Some(victims) = inner.victims(needed, &self.config)
                && !victims.is_empty()
            {
                let endings: Vec<Ending> =
                    victims.iter().filter_map(|name| inner.begin_unload(name)).collect();
                drop(inner);
                for ending in endings {
                    tracing::info!(model = ending.name(), "unloading, to make room for {name}");
                    // Nobody uses it.
                    self.end(ending, Duration::ZERO);
                }
                inner = self.lock();
                continue;
            }
            let in_time;
            (inner, in_time) = self.wait(inner, deadline);
            if !in_time {
                return Err(LoadError::Busy { name: name.to_owned() });
            }
        }
    }
}
