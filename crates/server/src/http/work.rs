//! Work beside the threads that serve: what takes long, such as parsing, rendering and encoding a
//! long text, so that it holds up no stream.

use crate::error::ApiError;
use realizar_runtime::lower_priority;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};

/// Bytes of a body up to which it is parsed where it arrived, and beside any number of others: in
/// a fraction of a millisecond for most.
pub(crate) const SMALL: usize = 32 << 10;

/// Limits concurrent work on large requests, so that the engines keep their processors.
/// Those that wait hold their bodies, whose bytes are limited.
static LARGE: LazyLock<Arc<Semaphore>> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    Arc::new(Semaphore::new((processors / 4).max(1)))
});

/// Runs what may take long where it holds up no other request.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(ApiError::unavailable("the server is shutting down")),
        },
    }
}

/// As [`blocking`], for work on a request of this many bytes: that on large ones takes turns, on threads
/// of its own that run after those of the engines.
pub(crate) async fn sized<T: Send + 'static>(
    n_bytes: usize,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if n_bytes <= SMALL {
        return blocking(work).await;
    }
    let turn = LARGE.clone().acquire_owned().await;
    let (sender, receiver) = oneshot::channel();
    let work = move || {
        lower_priority();
        // The turn lasts as long as the work, even if nothing waits for it any longer.
        let result = catch_unwind(AssertUnwindSafe(work));
        drop(turn);
        let _ = sender.send(result);
    };
    let thread = std::thread::Builder::new().name("large request".to_owned()).spawn(work);
    thread.map_err(|error| ApiError::unavailable(format!("no thread: {error}")))?;
    match receiver.await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => resume_unwind(panic),
        Err(_) => Err(ApiError::unavailable("the server is shutting down")),
    }
}

/// How long freed memory is kept for the next large request.
const KEPT: Duration = Duration::from_secs(1);
/// Whether memory is about to be released.
static GIVING_BACK: AtomicBool = AtomicBool::new(false);

/// Returns memory when a large request is over, with what others have freed until then.
pub(crate) fn give_back_memory(give_back: fn()) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    if GIVING_BACK.swap(true, Ordering::Relaxed) {
        return;
    }
    runtime.spawn(async move {
        tokio::time::sleep(KEPT).await;
        GIVING_BACK.store(false, Ordering::Relaxed);
        // The server may be ending.
        let _ = tokio::task::spawn_blocking(give_back).await;
    });
}
