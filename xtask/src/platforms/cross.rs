//! zig as the C compiler and linker for other platforms, handed to cargo by cargo-zigbuild; both come
//! from PyPI. Rust's standard library for a platform comes by rustup.

use std::process::Command;

use anyhow::Result;

use super::Platform;
#[cfg(feature = "all")]
use super::apple;
use crate::install::{Python, program};
use crate::shell;

const ENVIRONMENT: Python =
    Python { packages: &["cargo-zigbuild==0.24.1", "ziglang==0.17.1"], alone: &[] };

/// The environment's name.
const NAME: &str = "zig";

/// Installs the compiler.
pub(crate) fn fetch() -> Result<()> {
    ENVIRONMENT.install(NAME).map(drop)
}

/// Installs the standard library for a platform, if it is missing; false, and a line that says why,
/// where it cannot be had: without rustup, or from a machine that does not reach its server.
pub(super) fn install_target(triple: &str) -> Result<bool> {
    let missing = |why: &str| println!("platforms: no standard library for {triple}: {why}");
    let mut list = shell::command("rustup");
    let Ok(installed) = shell::output(list.args(["target", "list", "--installed"])) else {
        missing("rustup, which installs it, is not here");
        return Ok(false);
    };
    if installed.lines().all(|line| line != triple)
        && let Err(error) = shell::check(shell::command("rustup").args(["target", "add", triple]))
    {
        missing(&format!("{error:#}"));
        return Ok(false);
    }
    Ok(true)
}

/// The cargo that builds for a platform: `check`, `clippy` or `zigbuild`.
pub(super) fn cargo(verb: &str, platform: Platform) -> Result<Command> {
    let folder = ENVIRONMENT.install(NAME)?;
    let mut cargo = shell::command(program(&folder, "cargo-zigbuild"));
    cargo.env("CARGO_ZIGBUILD_PYTHON_PATH", program(&folder, "python"));
    cargo.env("CARGO_ZIGBUILD_CACHE_DIR", folder.join("wrappers"));
    cargo.env("ZIG_GLOBAL_CACHE_DIR", folder.join("cache"));
    let mut target = platform.triple.to_owned();
    if let Some(glibc) = platform.glibc {
        target += &format!(".{glibc}");
    }
    cargo.args([verb, "--target", &target]);
    #[cfg(feature = "all")]
    if verb == "zigbuild" && platform.triple.contains("apple") {
        apple::link(&mut cargo, platform.triple, &folder)?;
    }
    Ok(cargo)
}
