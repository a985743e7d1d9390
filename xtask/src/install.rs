//! Scratch environments: a Python environment or a folder of Node modules per client, in
//! `.cache/clients`. What is already there in the wanted versions is not installed again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;

/// What the scripts for Node import.
const NODE_MODULE: &str = "abilities.mjs";

/// What a client is installed with, and its packages with their versions.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "all"), allow(dead_code, reason = "clients are installed so"))]
pub(crate) enum Environment {
    /// pip, in an environment of its own.
    Python(&'static [&'static str]),
    /// The same, and packages of which nothing is needed that they depend on.
    PythonAnd { packages: &'static [&'static str], alone: &'static [&'static str] },
    /// One package without some of those that it depends on.
    PythonWithout { package: &'static str, without: &'static [&'static str] },
    /// npm, in a folder of its own.
    Node(&'static [&'static str]),
}

impl Environment {
    /// Installs what is missing and returns the environment's folder.
    pub(crate) fn install(self, name: &str) -> Result<PathBuf> {
        let folder = shell::cache_dir().join("clients").join(name);
        let packages = self.packages();
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
        match self {
            Self::Python(packages) => {
                environment(&folder)?;
                pip(&folder, packages)?;
            }
            Self::PythonAnd { packages, alone } => {
                environment(&folder)?;
                pip(&folder, packages)?;
                pip(&folder, &[&["--no-deps"], alone].concat())?;
            }
            Self::PythonWithout { package, without } => {
                environment(&folder)?;
                pip(&folder, &["--no-deps", package])?;
                let name = package.split("==").next().unwrap_or_default();
                let mut list = shell::command(program(&folder, "python"));
                let script = "import importlib.metadata as m, sys; print(*m.requires(sys.argv[1]), sep='\\n')";
                let list = shell::output(list.args(["-I", "-c", script, name]))?;
                pip(&folder, &requirements(&list, without))?;
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

    /// The packages that are named.
    pub(super) fn packages(self) -> Vec<&'static str> {
        match self {
            Self::Python(packages) | Self::Node(packages) => packages.to_vec(),
            Self::PythonAnd { packages, alone } => [packages, alone].concat(),
            Self::PythonWithout { package, .. } => vec![package],
        }
    }

    /// The command that runs a script of `xtask/clients` in the environment.
    #[cfg_attr(not(feature = "all"), allow(dead_code, reason = "clients are installed so"))]
    pub(super) fn script(self, name: &str, script: &str) -> Result<Command> {
        let folder = self.install(name)?;
        let scripts = shell::root().join("xtask/clients");
        let mut path = scripts.join(script);
        if matches!(self, Self::Node(_)) {
            // Node looks for modules beside the script.
            for file in [NODE_MODULE, script] {
                let from = scripts.join(file);
                fs::copy(&from, folder.join(file)).with_context(|| from.display().to_string())?;
            }
            path = folder.join(script);
        }
        Ok(self.interpret(&folder, &path))
    }

    /// The command that runs a file of the environment's language in the environment's folder.
    pub(super) fn interpret(self, folder: &Path, file: &Path) -> Command {
        let mut command = match self {
            Self::Python(_) | Self::PythonAnd { .. } | Self::PythonWithout { .. } => {
                let mut command = shell::command(program(folder, "python"));
                // No compiled files among the sources.
                command.env("PYTHONDONTWRITEBYTECODE", "1");
                command
            }
            Self::Node(_) => shell::command("node"),
        };
        command.arg(file);
        direct(&mut command);
        command
    }
}

/// Makes an empty Python environment.
fn environment(folder: &Path) -> Result<()> {
    shell::check(shell::command("python3").args(["-I", "-m", "venv"]).arg(folder))
}

/// What a package always depends on, one in a line, without the named ones.
fn requirements<'a>(list: &'a str, without: &[&str]) -> Vec<&'a str> {
    let is_wanted = |line: &&str| {
        let end = line.find(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c));
        let name = &line[..end.unwrap_or(line.len())];
        !line.is_empty() && !line.contains("extra ==") && !without.contains(&name)
    };
    list.lines().filter(is_wanted).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_are_chosen() {
        let list = "torch==2.1\nhttpx[http2]==0.28\nuvicorn[standard]>=0.5; python_version > '3'\n\
                    torch-sparse\nredis; extra == 'all'\n\n";
        let wanted = requirements(list, &["torch"]);
        let expected =
            ["httpx[http2]==0.28", "uvicorn[standard]>=0.5; python_version > '3'", "torch-sparse"];
        assert_eq!(wanted, expected);
    }
}
