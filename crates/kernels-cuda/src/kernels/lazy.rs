//! Loading on first use.

use std::sync::OnceLock;

use crate::Error;

/// Returns the value of `lock`, which is set by `load` if it is empty.
pub(super) fn get_or_load<T>(
    lock: &OnceLock<T>,
    load: impl FnOnce() -> Result<T, Error>,
) -> Result<&T, Error> {
    if let Some(found) = lock.get() {
        return Ok(found);
    }
    let loaded = load()?;
    Ok(lock.get_or_init(|| loaded))
}
