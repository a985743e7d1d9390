//! A Chromium for the tests of the page.

use std::path::PathBuf;

use anyhow::Result;

use crate::{apt, shell};

/// Programs that are a Chromium; the first one on the search path is used.
const BROWSERS: &[&str] = &["chromium", "chromium-browser", "google-chrome", "chrome"];
/// Debian's package of it. The tests bring their fonts.
const PACKAGES: &[&str] = &["chromium"];

/// The browser on the search path.
pub(super) fn find() -> Option<PathBuf> {
    BROWSERS.iter().find_map(|name| shell::on_path(name))
}

/// How it is installed.
pub(super) fn how() -> String {
    let packages = PACKAGES.join(" ");
    format!(
        "the tests of the page need it; on Debian: apt-get install --no-install-recommends {packages}"
    )
}

/// Installs it where it is missing and this user may install packages.
pub(crate) fn install() -> Result<()> {
    if !cfg!(target_os = "linux") || find().is_some() {
        return Ok(());
    }
    apt::install(PACKAGES, &how())
}
