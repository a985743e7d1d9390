//! Tests of the built binary. One program, so that they are linked once.

mod chat;
mod cli;
mod home;
mod hostile;
#[cfg(unix)]
mod launch;
mod mock;
mod models;
mod pull;
#[cfg(unix)]
mod serve;
#[cfg(unix)]
mod terminal;

use std::path::{Path, PathBuf};

/// A file of the tiny model.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/archs/llama").join(name)
}
