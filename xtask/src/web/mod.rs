//! `cargo xtask web`: builds the server's page from `crates/server/web`, and tests it.
//!
//! What is built is committed, so that nobody needs Node to build the server. `SHA256SUMS` beside it
//! ties the files to their sources: `cargo xtask tidy` tells when either has changed alone.

mod browser;
mod built;
#[cfg(feature = "all")]
mod files;
#[cfg(feature = "all")]
mod installed;
mod lock;
#[cfg(feature = "all")]
mod node;
#[cfg(feature = "all")]
mod page;
#[cfg(feature = "all")]
mod stub;

pub(crate) use browser::install as install_browser;
pub(crate) use built::{FOLDER as BUILT, stale};
pub(crate) use lock::check_licences;
#[cfg(feature = "all")]
pub(crate) use page::{Args, run, test};

/// The sources.
const WEB: &str = "crates/server/web";
