//! The tiny models of the repository.

use std::path::PathBuf;

/// The directory of a tiny model.
pub(crate) fn tiny(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/archs").join(name)
}
