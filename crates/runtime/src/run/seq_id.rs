//! A sequence's id, whose drop ends the sequence.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A sequence of a [`Runner`](super::Runner). Dropping it ends the sequence: the runner frees its
/// pages before it next counts or hands out any.
#[derive(Debug)]
pub struct SeqId {
    pub(super) idx: usize,
    pub(super) ended: Ended,
}

impl Drop for SeqId {
    fn drop(&mut self) {
        self.ended.lock().push(self.idx);
    }
}

/// Sequences whose ids were dropped, for their runner to free.
#[derive(Debug, Clone, Default)]
pub(super) struct Ended(Arc<Mutex<Vec<usize>>>);

impl Ended {
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
