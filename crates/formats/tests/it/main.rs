//! Tests of the whole crate. One program, so that they are linked once.

mod golden;
mod hostile;
mod round_trip;

use std::path::{Path, PathBuf};

/// A file that `fixtures/make.py` made.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}
