//! Scratch environments in `.cache/clients`: a folder per name, with packages in named versions. Packages that are
//! installed already are not installed again.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::shell;

/// Packages of a Python environment, with their versions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Python {
    pub(crate) packages: &'static [&'static str],
    /// Packages that are installed without their dependencies.
    pub(crate) alone: &'static [&'static str],
}

impl Python {
    /// Installs what is missing and returns the environment's folder.
    pub(crate) fn install(self, name: &str) -> Result<PathBuf> {
        let Self { packages, alone } = self;
        installed(name, &[packages, alone].concat(), |folder| {
            environment(folder)?;
            pip(folder, packages)?;
            if alone.is_empty() { Ok(()) } else { pip(folder, &[&["--no-deps"], alone].concat()) }
        })
    }
}

/// Calls `install` with the empty folder of a name, unless it has these packages, and returns the folder.
pub(crate) fn installed(
    name: &str,
    packages: &[&str],
    install: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let folder = shell::cache_dir().join("clients").join(name);
    let wanted = packages.join("\n");
    let stamp = folder.join("installed");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(folder);
    }
    println!("install {}", wanted.replace('\n', " "));
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    install(&folder)?;
    fs::write(stamp, wanted)?;
    Ok(folder)
}

/// Makes an empty Python environment.
pub(crate) fn environment(folder: &Path) -> Result<()> {
    shell::check(shell::command("python3").args(["-I", "-m", "venv"]).arg(folder))
}

/// Installs packages into a Python environment.
pub(crate) fn pip(folder: &Path, packages: &[&str]) -> Result<()> {
    let mut pip = shell::command(program(folder, "python"));
    pip.args(["-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    shell::check(pip.args(packages))
}

/// A program of a Python environment.
pub(crate) fn program(folder: &Path, name: &str) -> PathBuf {
    let programs = if cfg!(windows) { "Scripts" } else { "bin" };
    folder.join(programs).join(format!("{name}{}", std::env::consts::EXE_SUFFIX))
}
