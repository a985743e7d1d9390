//! Scratch environments: a Python environment or a folder of Node modules per client, in
//! `.cache/clients`. What is already there in the wanted versions is not installed again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;

/// What a client is installed with, and its packages with their versions.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Environment {
    /// pip, in an environment of its own.
    Python(&'static [&'static str]),
    /// The same, and packages of which nothing is needed that they depend on.
    PythonAnd { packages: &'static [&'static str], alone: &'static [&'static str] },
    /// npm, in a folder of its own.
    Node(&'static [&'static str]),
}

impl Environment {
    /// Installs what is missing and returns the environment's folder.
    pub(crate) fn install(self, name: &str) -> Result<PathBuf> {
        let folder = shell::cache_dir().join("clients").join(name);
        let (packages, alone) = self.packages();
        let wanted = [packages, alone].concat().join("\n");
        let stamp = folder.join("installed");
        if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
            return Ok(folder);
        }
        println!("install {}", wanted.replace('\n', " "));
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        match self {
            Self::Python(_) | Self::PythonAnd { .. } => {
                shell::check(shell::command("python3").args(["-I", "-m", "venv"]).arg(&folder))?;
                pip(&folder, packages)?;
                if !alone.is_empty() {
                    pip(&folder, &[&["--no-deps"], alone].concat())?;
                }
            }
            Self::Node(_) => {
                let mut npm = shell::command("npm");
                npm.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"]);
                shell::check(npm.arg(&folder).args(packages))?;
            }
        }
        fs::write(stamp, wanted)?;
        Ok(folder)
    }

    /// The packages, and those that are installed alone.
    pub(super) fn packages(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Self::Python(packages) | Self::Node(packages) => (packages, &[]),
            Self::PythonAnd { packages, alone } => (packages, alone),
        }
    }

    /// The command that runs a script of `xtask/clients` in the environment.
    pub(super) fn script(self, name: &str, script: &str) -> Result<Command> {
        let folder = self.install(name)?;
        let path = shell::root().join("xtask/clients").join(script);
        let mut command = match self {
            Self::Python(_) | Self::PythonAnd { .. } => {
                let mut command = shell::command(program(&folder, "python"));
                // No compiled files among the sources.
                command.env("PYTHONDONTWRITEBYTECODE", "1").arg(path);
                command
            }
            Self::Node(_) => {
                // Node looks for modules beside the script.
                let copy = folder.join(script);
                fs::copy(&path, &copy).with_context(|| path.display().to_string())?;
                let mut command = shell::command("node");
                command.arg(copy);
                command
            }
        };
        direct(&mut command);
        Ok(command)
    }
}

/// Installs packages into a Python environment.
fn pip(folder: &Path, packages: &[&str]) -> Result<()> {
    let mut pip = shell::command(program(folder, "python"));
    pip.args(["-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    shell::check(pip.args(packages))
}

/// A program of a Python environment.
pub(crate) fn program(folder: &Path, name: &str) -> PathBuf {
    let programs = if cfg!(windows) { "Scripts" } else { "bin" };
    folder.join(programs).join(format!("{name}{}", std::env::consts::EXE_SUFFIX))
}

/// Connections to this machine go by no proxy.
pub(super) fn direct(command: &mut Command) {
    for name in ["NO_PROXY", "no_proxy"] {
        command.env(name, "127.0.0.1,localhost");
    }
}
