//! Running other programs from the repository root, and where things lie in it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The repository root: `REALIZAR_ROOT`, or where this program was built.
pub(crate) fn root() -> PathBuf {
    if let Some(root) = std::env::var_os("REALIZAR_ROOT") {
        return root.into();
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// The folder for fetched files: `REALIZAR_CACHE`, or `.cache` in the repository root.
pub(crate) fn cache_dir() -> PathBuf {
    std::env::var_os("REALIZAR_CACHE").map_or_else(|| root().join(".cache"), PathBuf::from)
}

/// Where `xtask setup` keeps the published vocabularies.
pub(crate) fn vocab_dir() -> PathBuf {
    cache_dir().join("vocab")
}

/// Where `xtask setup` keeps the published chat templates.
pub(crate) fn template_dir() -> PathBuf {
    cache_dir().join("templates")
}

/// Where `xtask setup` keeps the real models.
pub(crate) fn model_dir() -> PathBuf {
    cache_dir().join("models")
}

/// A program that starts in the repository root.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

/// The cargo that runs this command.
pub(crate) fn cargo() -> Command {
    command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// A program of the search path.
pub(crate) fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|d| d.join(program)).find(|p| p.is_file())
}

/// Run to the end with the terminal's output; a status other than zero is an error.
pub(crate) fn check(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("start {}", show(command)))?;
    if !status.success() {
        bail!("{} exited with {status}", show(command));
    }
    Ok(())
}

/// Run to the end and return standard output; the error carries standard error's last line.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let out = command.output().with_context(|| format!("start {}", show(command)))?;
    if !out.status.success() {
        let stderr = String::from_utf8_lossy(&out.stderr);
        let last = stderr.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("no message");
        bail!("{} exited with {}: {last}", show(command), out.status);
    }
    String::from_utf8(out.stdout).with_context(|| format!("output of {}", show(command)))
}

/// The platform that this runs on, as rustc names it.
pub(crate) fn host() -> Result<String> {
    let text = output(command("rustc").arg("-vV"))?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc names no host")
}

/// Run to the end and parse standard output as JSON.
pub(crate) fn json(command: &mut Command) -> Result<Value> {
    let text = output(command)?;
    serde_json::from_str(&text).with_context(|| format!("JSON from {}", show(command)))
}

/// The command line, shortened for messages.
pub(crate) fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let mut line = words.map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ");
    if line.chars().count() > 80 {
        line = line.chars().take(77).chain("...".chars()).collect();
    }
    line
}

/// Cargo's target folder.
pub(crate) fn target_dir() -> Result<PathBuf> {
    let metadata = json(cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
    Ok(metadata["target_directory"].as_str().context("no target_directory")?.into())
}

/// Build the release binary `realizar` and return its path.
#[cfg(feature = "all")]
pub(crate) fn build_engine() -> Result<PathBuf> {
    check(cargo().args(["build", "--release", "--package", "realizar"]))?;
    engine_of("release")
}

/// The same with everything that is left out of it by default.
#[cfg(feature = "all")]
pub(crate) fn build_whole_engine() -> Result<PathBuf> {
    check(cargo().args(["build", "--release", "--package", "realizar", "--all-features"]))?;
    engine_of("release")
}

/// How cargo is called to build or run the tests. Every call names the same packages and features,
/// as dependencies are built again for another choice.
pub(crate) const TESTS: &[&str] = &["test", "--workspace", "--all-features"];

/// Build the tests of the workspace, the binary `realizar` among them, and return its path.
///
/// It is the engine with the checks of debug builds.
pub(crate) fn build_tested_engine() -> Result<PathBuf> {
    check(cargo().args(TESTS).args(["--no-run", "--quiet"]))?;
    engine_of("debug")
}

/// Build `cargo xtask` with all its commands, with the dependencies as they are in the tests, and return its path.
pub(crate) fn build_all_commands() -> Result<PathBuf> {
    const BIN: &str = "xtask-all";
    check(cargo().args(["build", "--workspace", "--all-features", "--quiet", "--bin", BIN]))?;
    program_of("debug", BIN)
}

fn engine_of(profile: &str) -> Result<PathBuf> {
    program_of(profile, "realizar")
}

fn program_of(profile: &str, name: &str) -> Result<PathBuf> {
    let name = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    Ok(target_dir()?.join(profile).join(name))
}
