//! The use of a loaded model by a request: as long as there is one, the model stays.

use super::Registry;
use crate::error::ApiError;
use crate::registry::served::ServedModel;
use realizar_runtime::Error;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// A loaded model that a request uses. The model is not unloaded to make room for another one
/// before all leases are gone.
#[derive(Clone)]
pub(crate) struct ModelLease(Arc<Lease>);

struct Lease {
    model: Arc<ServedModel>,
    uses: Arc<AtomicUsize>,
    registry: Arc<Registry>,
}

impl ModelLease {
    /// A further use; `uses` is counted up by the caller, who holds the lock.
    pub(super) fn counted(
        model: Arc<ServedModel>,
        uses: Arc<AtomicUsize>,
        registry: Arc<Registry>,
    ) -> Self {
        Self(Arc::new(Lease { model, uses, registry }))
    }

    /// A failure of its engine, as a request reports it.
    pub(crate) fn failure(&self, error: Error) -> ApiError {
        match error {
            Error::Ended if self.0.registry.lock().closed => {
                ApiError::unavailable("the server is shutting down")
            }
            Error::Ended => ApiError::unavailable("the model is being unloaded"),
            error => error.into(),
        }
    }
}

impl Deref for ModelLease {
    type Target = ServedModel;

    fn deref(&self) -> &ServedModel {
        &self.0.model
    }
}

impl fmt::Debug for ModelLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelLease({})", self.name)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut inner = self.registry.lock();
        let is_last = self.uses.fetch_sub(1, Ordering::Relaxed) == 1;
        inner.touch(&self.model.name);
        let ending = match is_last && !inner.closed {
            true => inner.note_idle(&self.model.name, Instant::now()),
            false => None,
        };
        drop(inner);
        self.registry.changed.notify_all();
        self.registry.idle.notify_one();
        self.registry.end_idle(ending.into_iter().collect());
    }
}
