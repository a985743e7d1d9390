//! Other programs: how they are found and what they are started with. Nothing else in the crates
//! starts one, which `cargo xtask tidy` checks.
//!
//! Programs that do a part of a command's work get little:
//!
//! The working directory of the user and most of the environment may be the work of others: a
//! folder that was unpacked or cloned. A program is therefore looked up in the absolute
//! directories of `PATH` alone, runs in a directory that its caller names, and gets a fixed list
//! of variables. A program that the user has asked for works where the user does, with all variables.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What every program gets: where its user's files are, and the language of its messages.
const BASE: &[&str] = &[
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_DIRS",
    "XDG_CONFIG_HOME",
    // Windows.
    "APPDATA",
    "LOCALAPPDATA",
    "HOMEDRIVE",
    "HOMEPATH",
    "USERPROFILE",
    "SYSTEMDRIVE",
    "SYSTEMROOT",
    "WINDIR",
];

/// A program of this machine.
#[derive(Debug)]
pub(crate) struct Program {
    path: PathBuf, // absolute
}

impl Program {
    /// The first executable file of this name in the absolute directories of `PATH`.
    pub(crate) fn find(name: &str) -> Option<Self> {
        Self::find_file(&format!("{name}{}", env::consts::EXE_SUFFIX))
    }

    /// As [`Self::find`], where the program may also be a script, as those are that npm installs.
    pub(crate) fn find_script(name: &str) -> Option<Self> {
        let of_script = || Self::find_file(&format!("{name}.cmd"));
        Self::find(name).or_else(|| if cfg!(windows) { of_script() } else { None })
    }

    fn find_file(file: &str) -> Option<Self> {
        let mut paths = search_path().into_iter().map(|dir| dir.join(file));
        paths.find(|path| is_executable(path)).map(|path| Self { path })
    }

    /// The program in a file, whose path is absolute.
    pub(crate) fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Starts as the user would start it: in the working directory, with all variables, and with the standard
    /// streams of this program.
    pub(crate) fn as_user(&self) -> Command {
        Command::new(&self.path)
    }

    /// Starts in `dir` with the variables of `pass`, as far as they are set, and those that every
    /// program gets. Standard input is empty.
    pub(crate) fn command(&self, dir: &Path, pass: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(dir).env_clear().stdin(Stdio::null());
        if let Ok(path) = env::join_paths(search_path()) {
            command.env("PATH", path);
        }
        for name in BASE.iter().chain(pass) {
            if let Some(value) = env::var_os(name) {
                command.env(name, value);
            }
        }
        command
    }
}

/// This program itself.
pub(crate) fn own() -> io::Result<Program> {
    env::current_exe().map(|path| Program { path })
}

/// The absolute directories of `PATH`; an empty or relative one means the working directory.
fn search_path() -> Vec<PathBuf> {
    absolute_dirs(&env::var_os("PATH").unwrap_or_default())
}

fn absolute_dirs(path: &OsStr) -> Vec<PathBuf> {
    env::split_paths(path).filter(|dir| dir.is_absolute()).collect()
}

#[cfg(unix)]
fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|info| info.is_file() && info.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(path: &Path) -> bool {
    // An alias of Windows' shop is no file that can be opened, and can be started.
    fs::symlink_metadata(path).is_ok_and(|info| !info.is_dir())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_directories_are_searched() {
        let dirs = |path: &str| absolute_dirs(path.as_ref());
        assert_eq!(dirs(":/a:.:bin:../b::/c d:"), [Path::new("/a"), Path::new("/c d")]);
        assert_eq!(dirs(""), [] as [&Path; 0]);
    }

    #[test]
    fn the_environment_is_a_fixed_list() {
        let program = Program { path: "/x/y".into() };
        let command = program.command(Path::new("/z"), &["CARGO_PKG_NAME"]);
        assert_eq!(command.get_current_dir(), Some(Path::new("/z")));
        let passed: Vec<_> = command.get_envs().map(|(name, _)| name.to_owned()).collect();
        assert!(passed.contains(&"CARGO_PKG_NAME".into()), "{passed:?}");
        // Cargo sets both for every test.
        assert!(!passed.contains(&"CARGO_MANIFEST_DIR".into()), "{passed:?}");
    }
}
