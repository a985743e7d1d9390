//! Files that a run wrote for a later one: packed weights and sessions.
//!
//! What they hold is used instead of what would be computed, and no hash in them tells who wrote
//! them. On Unix a file is therefore read only when nobody but its user and root can have written
//! it: it belongs to one of the two, and neither its group nor others may write to it. Where a
//! system has no such modes, nothing is checked.
//!
//! A file is written under a temporary name of its own, `NAME.PROCESS.NUMBER.tmp`, which is locked meanwhile. So several
//! processes may write one file, and the last one stays, and a temporary file without a lock is what a process
//! left behind that was killed.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::open_regular;

/// Why a file is not read.
#[derive(Debug)]
pub enum Refusal {
    /// The file cannot be opened or examined.
    Io(io::Error),
    /// Others may have written it; says who and what to do.
    Writable(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Writable(reason) => f.write_str(reason),
        }
    }
}

/// Opens a regular file for reading, if nobody else can have written it.
pub fn open(path: &Path) -> Result<File, Refusal> {
    let file = open_regular(path).map_err(Refusal::Io)?;
    match writers(&file.metadata().map_err(Refusal::Io)?) {
        None => Ok(file),
        Some(reason) => Err(Refusal::Writable(reason)),
    }
}

/// The end of temporary names.
const TEMPORARY: &str = ".tmp";
/// Names that are tried for a temporary file.
const MAX_NAMES: usize = 1000;

/// Writes a file of at most this mode, which appears under its name when it is whole; one of this name, or a link, is
/// replaced. What killed processes left of earlier attempts goes.
pub fn write(
    path: &Path,
    mode: u32,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    remove_abandoned(path);
    let (mut file, temporary) = create_temporary(path, mode)?;
    let whole = write(&mut file)
        // The name must not be on the disk before the data.
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&temporary, path));
    if whole.is_err() {
        // The error that counts is the first.
        let _ = fs::remove_file(&temporary);
    }
    whole
}

/// Creates and locks a file of a temporary name.
fn create_temporary(path: &Path, mode: u32) -> io::Result<(File, PathBuf)> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    for _ in 0..MAX_NAMES {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.{number}{TEMPORARY}", std::process::id()));
        let temporary = path.with_file_name(name);
        let file = match create(&temporary, mode) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(error),
        };
        match file.try_lock() {
            // Before the lock, another process may have taken it for abandoned.
            Ok(()) if temporary.exists() => return Ok((file, temporary)),
            Ok(()) | Err(TryLockError::WouldBlock) => {}
            // There are no locks here, so nothing is ever taken for abandoned.
            Err(TryLockError::Error(_)) => return Ok((file, temporary)),
        }
    }
    let problem = format!("{MAX_NAMES} temporary names are taken");
    Err(io::Error::new(io::ErrorKind::AlreadyExists, problem))
}

/// Removes what killed processes left of attempts to write a file.
pub fn remove_abandoned(path: &Path) {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return };
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    // A folder that cannot be read, or a file that cannot be removed, is no reason to write nothing.
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        if is_temporary(&entry.file_name(), Some(name)) && is_abandoned(&entry.path()) {
            let path = entry.path();
            match fs::remove_file(&path) {
                Ok(()) => tracing::info!("removed {}, an unfinished file", path.display()),
                Err(error) => tracing::debug!("cannot remove {}: {error}", path.display()),
            }
        }
    }
}

/// Whether a name is a temporary one, of this file or of any.
pub fn is_temporary(name: &OsStr, of: Option<&OsStr>) -> bool {
    let name = name.as_encoded_bytes();
    let Some(rest) = name.strip_suffix(TEMPORARY.as_bytes()) else { return false };
    let is_number = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    match of {
        // Earlier builds had no number after that of the process.
        Some(of) => rest.strip_prefix(of.as_encoded_bytes()).is_some_and(|numbers| {
            let mut parts = numbers.split(|&byte| byte == b'.');
            parts.next().is_some_and(<[u8]>::is_empty) && {
                let n_parts = parts.clone().count();
                (1..=2).contains(&n_parts) && parts.all(is_number)
            }
        }),
        None => rest.rsplitn(2, |&byte| byte == b'.').next().is_some_and(is_number),
    }
}

/// Whether no process has the lock of a temporary file.
pub fn is_abandoned(path: &Path) -> bool {
    let is_file = fs::symlink_metadata(path).is_ok_and(|info| info.is_file());
    is_file && open_regular(path).is_ok_and(|file| file.try_lock().is_ok())
}

/// Creates a file of at most this mode; an error where one is, or a link.
fn create(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    options.open(path)
}

/// Which other users can have written a file, if any.
#[cfg(unix)]
fn writers(info: &fs::Metadata) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    describe(info.uid(), info.mode(), rustix::process::geteuid().as_raw())
}

#[cfg(not(unix))]
fn writers(_: &fs::Metadata) -> Option<String> {
    None
}

#[cfg(unix)]
fn describe(owner: u32, mode: u32, user: u32) -> Option<String> {
    let who = match (mode & 0o020 != 0, mode & 0o002 != 0) {
        _ if owner != user && owner != 0 => {
            return Some(format!(
                "it belongs to another user ({owner}, this one is {user}), who could thus control \
                 what the model answers; delete it"
            ));
        }
        (false, false) => return None,
        (true, false) => "its group",
        (_, true) => "every user",
    };
    let mode = mode & 0o7777;
    Some(format!(
        "{who} may write to it (mode {mode:04o}); delete it, or `chmod go-w` it if it is yours"
    ))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    #[test]
    fn owners_and_modes_of_files() {
        for (owner, mode, want) in [
            (1000, 0o100_600, None),
            (1000, 0o100_644, None),
            (0, 0o100_644, None),
            (1000, 0o100_664, Some("its group may write to it (mode 0664)")),
            (0, 0o100_646, Some("every user may write to it (mode 0646)")),
            (1000, 0o100_666, Some("every user may write to it (mode 0666)")),
            (1001, 0o100_600, Some("it belongs to another user (1001, this one is 1000)")),
        ] {
            let found = describe(owner, mode, 1000);
            match want {
                Some(want) => {
                    assert!(found.as_deref().is_some_and(|f| f.starts_with(want)), "{found:?}");
                }
                None => assert_eq!(found, None),
            }
        }
    }

    #[test]
    fn a_new_file_is_its_users_own() {
        let dir = tempfile::tempdir().unwrap();
        let (path, target) = (dir.path().join("f"), dir.path().join("target"));
        fs::write(&target, "precious").unwrap();
        symlink(&target, &path).unwrap();
        for mode in [0o600, 0o644] {
            assert!(create(&path, mode).is_err());
            write(&path, mode, |_| Ok(())).unwrap();
            let info = fs::symlink_metadata(&path).unwrap();
            assert!(info.is_file() && info.mode() & 0o7777 & !mode == 0, "{:o}", info.mode());
            open(&path).unwrap();
        }
        assert_eq!(fs::read(&target).unwrap(), b"precious");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o622)).unwrap();
        assert!(matches!(open(&path), Err(Refusal::Writable(_))));
        assert!(matches!(open(dir.path()), Err(Refusal::Io(_))));
        assert!(matches!(open(&dir.path().join("none")), Err(Refusal::Io(_))));
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let name =
            |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<_> = entries.map(name).collect();
        names.sort();
        names
    }

    #[test]
    fn writers_of_one_file_do_not_meet() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let text = |i: usize| i.to_string().repeat(100_000);
        // All have begun before one ends.
        let begun = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for i in 0..8 {
                let (path, text, begun) = (&path, &text, &begun);
                scope.spawn(move || {
                    let written = write(path, 0o600, |file| {
                        begun.wait();
                        io::Write::write_all(file, text(i).as_bytes())
                    });
                    written.unwrap();
                });
            }
        });
        let found = fs::read_to_string(&path).unwrap();
        assert!((0..8).any(|i| found == text(i)));
        assert_eq!(names(dir.path()), ["f"]);
        let failed = write(&path, 0o600, |_| Err(io::Error::other("full")));
        assert_eq!(failed.unwrap_err().to_string(), "full");
        assert_eq!(names(dir.path()), ["f"]);
        assert_eq!(fs::read_to_string(&path).unwrap(), found);
    }

    #[test]
    fn what_a_killed_process_left_is_removed_by_the_next_writer() {
        let dir = tempfile::tempdir().unwrap();
        let (path, at) = (dir.path().join("f"), |name: &str| dir.path().join(name));
        for name in
            ["f.1.2.tmp", "f.17.tmp", "g.1.2.tmp", "f.tmp", "f.a.tmp", "f.1.2", "f2.1.2.tmp"]
        {
            fs::write(at(name), "left").unwrap();
        }
        fs::create_dir(at("f.1.3.tmp")).unwrap();
        // This one is being written.
        let running = File::create(at("f.1.4.tmp")).unwrap();
        running.lock().unwrap();
        write(&path, 0o600, |_| Ok(())).unwrap();
        let left =
            ["f", "f.1.2", "f.1.3.tmp", "f.1.4.tmp", "f.a.tmp", "f.tmp", "f2.1.2.tmp", "g.1.2.tmp"];
        assert_eq!(names(dir.path()), left);
        drop(running);
        remove_abandoned(&path);
        assert!(!at("f.1.4.tmp").exists());
        // A file whose own name ends in numbers.
        assert!(is_temporary(OsStr::new("v1.5.77.0.tmp"), Some(OsStr::new("v1.5"))));
        assert!(!is_temporary(OsStr::new("v1.5.tmp"), Some(OsStr::new("v1.5"))));
    }
}
