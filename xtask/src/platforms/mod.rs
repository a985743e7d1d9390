//! Platforms that the program is published for, beside the one that builds it: how they are built from
//! here, and the step `platforms`, which keeps them compiling.

#[cfg(feature = "all")]
mod apple;
mod cross;
mod inputs;

#[cfg(feature = "all")]
use std::path::PathBuf;

use anyhow::Result;

use crate::shell;
use crate::totals::Totals;

pub(crate) use cross::fetch;

/// A platform that can be built from another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Platform {
    /// Its name, as rustc has it.
    pub(crate) triple: &'static str,
    /// The oldest glibc that a program built for it runs with.
    pub(crate) glibc: Option<&'static str>,
    /// Whether the step compiles for it. What is left out shares its system with one platform that is
    /// tested and its processor with another.
    is_checked: bool,
}

const PLATFORMS: &[Platform] = &[
    Platform { triple: "x86_64-pc-windows-gnu", glibc: None, is_checked: true },
    Platform { triple: "aarch64-apple-darwin", glibc: None, is_checked: true },
    Platform { triple: "aarch64-unknown-linux-gnu", glibc: Some("2.28"), is_checked: false },
    Platform { triple: "x86_64-unknown-linux-gnu", glibc: Some("2.28"), is_checked: false },
];

/// Packages that are part of no program: the fuzzer takes a C++ compiler, the benchmarks no user.
const LEFT_OUT: &[&str] = &["realizar-fuzz", "realizar-benches"];

#[cfg(feature = "all")]
impl Platform {
    /// The triples of all of them.
    pub(crate) fn triples() -> impl Iterator<Item = &'static str> {
        PLATFORMS.iter().map(|platform| platform.triple)
    }

    /// The one of this name.
    pub(crate) fn find(triple: &str) -> Option<Self> {
        PLATFORMS.iter().copied().find(|platform| platform.triple == triple)
    }
}

/// Whether the lints' inputs are those that they last passed with, so that nothing has to be installed for them.
pub(crate) fn are_recorded() -> bool {
    inputs::hash().is_ok_and(|hash| inputs::is_recorded(&hash))
}

/// Lints the workspace for each platform whose standard library can be had, and says which ones are left out;
/// unless it passed with the same inputs before.
pub(crate) fn run() -> Result<Totals> {
    let hash = inputs::hash()?;
    if inputs::is_recorded(&hash) {
        println!("platforms: the lints passed with these inputs before");
        return Ok(Totals::default());
    }
    let mut totals = Totals::default();
    let host = shell::host()?;
    let mut is_complete = true;
    for platform in PLATFORMS.iter().filter(|p| p.is_checked && p.triple != host) {
        if lint(*platform)? {
            totals.passed += 1;
        } else {
            is_complete = false;
        }
    }
    if is_complete {
        inputs::record(&hash)?;
    }
    Ok(totals)
}

/// Lints the workspace for a platform; false where its standard library cannot be had.
pub(crate) fn lint(platform: Platform) -> Result<bool> {
    if !cross::install_target(platform.triple)? {
        return Ok(false);
    }
    println!("-- {}", platform.triple);
    let mut clippy = cross::cargo("clippy", platform)?;
    clippy.args(["--workspace", "--all-features", "--locked", "--quiet"]);
    clippy.args(LEFT_OUT.iter().flat_map(|package| ["--exclude", package]));
    shell::check(clippy.args(["--", "-D", "warnings"]))?;
    Ok(true)
}

/// Lints and builds the published program for a platform and returns its path.
#[cfg(feature = "all")]
pub(crate) fn build(platform: Platform, args: &[&str]) -> Result<PathBuf> {
    anyhow::ensure!(lint(platform)?, "building for {} needs its standard library", platform.triple);
    let mut build = cross::cargo("zigbuild", platform)?;
    shell::check(build.args(args))?;
    let name = if platform.triple.contains("windows") { "realizar.exe" } else { "realizar" };
    Ok(shell::target_dir()?.join(platform.triple).join("release").join(name))
}
