use std::sync::{
    atomic::{AtomicBool, Ordering},
    Arc,
};

/// A permanent cancellation request for one parser or matcher.
///
/// Cloned handles control the same cancellation state. The handle can outlive the parser or
/// matcher. Cancellation does not wait for the worker; join it before accessing the cancelled
/// object.
#[derive(Clone, Debug, Default)]
pub struct CancellationHandle(Arc<AtomicBool>);

impl CancellationHandle {
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
    pub(crate) fn check(&self) -> Result<(), Cancelled> {
        if self.is_cancelled() {
            Err(Cancelled)
        } else {
            Ok(())
        }
    }
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }
    pub(crate) fn snapshot(&self) -> Self {
        Self(Arc::new(AtomicBool::new(self.is_cancelled())))
    }
}

/// A parser or matcher observed a permanent cancellation request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled;

impl std::fmt::Display for Cancelled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("operation cancelled")
    }
}
impl std::error::Error for Cancelled {}
