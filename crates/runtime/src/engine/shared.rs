//! The state that the engine's thread shares with its callers.

use super::stats::Counters;
use realizar_base::panics;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) stats: Counters,
    /// Accepted requests that are not running yet.
    pub(super) waiting: AtomicUsize,
    /// No more requests are accepted.
    pub(super) closed: AtomicBool,
    failure: Mutex<Failure>,
}

/// A callback that gets the reason of a failure.
type Listener = Box<dyn FnOnce(&str) + Send>;

/// Why the engine ended on its own, if it has, and the listener for that.
#[derive(Default)]
struct Failure {
    reason: Option<String>,
    listener: Option<Listener>,
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failure").field("reason", &self.reason).finish_non_exhaustive()
    }
}

impl Shared {
    fn lock_failure(&self) -> MutexGuard<'_, Failure> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the engine ended on its own, and calls the listener.
    pub(super) fn fail(&self, reason: &str) {
        let listener = {
            let mut failure = self.lock_failure();
            failure.reason = Some(reason.to_owned());
            failure.listener.take()
        };
        if let Some(listener) = listener {
            listener(reason);
        }
    }

    /// Sets the listener; calls it at once if the engine has failed.
    pub(super) fn on_failure(&self, listener: Listener) {
        let mut failure = self.lock_failure();
        match failure.reason.clone() {
            None => failure.listener = Some(listener),
            Some(reason) => {
                drop(failure);
                listener(&reason);
            }
        }
    }

    /// Sends a request its last event. A panic of its sink is logged.
    pub(super) fn send_last(&self, send: impl FnOnce(&Counters)) {
        if let Err(panic) = panics::caught(|| send(&self.stats)) {
            tracing::error!("the sink of a request panicked at its end: {panic}");
        }
    }
}
