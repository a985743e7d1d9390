//! The environments of clients: Python packages, or Node modules, and the commands that run scripts in them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::install::{self, Python, environment, installed, pip};
use crate::shell;

/// The module that the scripts for Node import.
const NODE_MODULE: &str = "abilities.mjs";

/// The installer of a client, and its packages with their versions.
#[derive(Clone, Copy, Debug)]
pub(super) enum Environment {
    /// pip, in an environment of its own.
    Python(&'static [&'static str]),
    /// One package without some of its dependencies.
    PythonWithout { package: &'static str, without: &'static [&'static str] },
    /// npm, in a folder of its own.
    Node(&'static [&'static str]),
}

impl Environment {
    /// Installs what is missing and returns the environment's folder.
    pub(super) fn install(self, name: &str) -> Result<PathBuf> {
        match self {
            Self::Python(packages) => Python { packages, alone: &[] }.install(name),
            Self::PythonWithout { package, without } => {
                installed(name, &self.packages(), |folder| {
                    environment(folder)?;
                    pip(folder, &["--no-deps", package])?;
                    let name = package.split("==").next().unwrap_or_default();
                    let mut list = shell::command(install::program(folder, "python"));
                    let script = "import importlib.metadata as m, sys; print(*m.requires(sys.argv[1]), sep='\\n')";
                    let list = shell::output(list.args(["-I", "-c", script, name]))?;
                    pip(folder, &requirements(&list, without))
                })
            }
            Self::Node(packages) => installed(name, &self.packages(), |folder| {
                let mut npm = shell::command("npm");
                npm.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"]);
                shell::check(npm.arg(folder).args(packages))
            }),
        }
    }

    /// The named packages.
    pub(super) fn packages(self) -> Vec<&'static str> {
        match self {
            Self::Python(packages) | Self::Node(packages) => packages.to_vec(),
            Self::PythonWithout { package, .. } => vec![package],
        }
    }

    /// The command that runs a script of `xtask/clients` in the environment.
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
            Self::Python(_) | Self::PythonWithout { .. } => {
                let mut command = shell::command(install::program(folder, "python"));
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

/// The unconditional dependencies among the lines of `list`, without the named ones.
fn requirements<'a>(list: &'a str, without: &[&str]) -> Vec<&'a str> {
    let is_wanted = |line: &&str| {
        let end = line.find(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c));
        let name = &line[..end.unwrap_or(line.len())];
        !line.is_empty() && !line.contains("extra ==") && !without.contains(&name)
    };
    list.lines().filter(is_wanted).collect()
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
