//! Kernels that are loaded when they are first needed.

use std::sync::OnceLock;

use crate::Error;

/// Returns the value of a lock, which `load` makes if it is empty.
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
