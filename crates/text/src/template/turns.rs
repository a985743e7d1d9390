//! Renderings of one template that make much take turns, so that many requests together make no more
//! than one of them may, beside the little that each has before its turn.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Whether one of a template's renderings has the turn.
#[derive(Debug, Default)]
pub(super) struct Turns {
    taken: Mutex<bool>,
    given_back: Condvar,
}

/// The turn, until this is dropped.
#[derive(Debug)]
pub(super) struct Turn(Arc<Turns>);

impl Turns {
    /// Waits for the turn.
    pub(super) fn take(self: &Arc<Self>) -> Turn {
        let taken = self.taken();
        let wait = self.given_back.wait_while(taken, |taken| *taken);
        *wait.unwrap_or_else(PoisonError::into_inner) = true;
        Turn(self.clone())
    }

    fn taken(&self) -> MutexGuard<'_, bool> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *self.0.taken() = false;
        self.0.given_back.notify_one();
    }
}
