//! Files that a run wrote for a later one: packed weights and sessions.
//!
//! What they hold is used instead of what would be computed, and no hash in them tells who wrote
//! them. On Unix a file is therefore read only when nobody but its user and root can have written
//! it: it belongs to one of the two, and neither its group nor others may write to it. Where a
//! system has no such modes, nothing is checked.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

/// Why a file is not read.
#[derive(Debug)]
pub(crate) enum Refusal {
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
pub(crate) fn open(path: &Path) -> Result<File, Refusal> {
    // Opening a pipe waits for its writer, so the kind is checked first.
    let check = |info: io::Result<fs::Metadata>| match info {
        Ok(info) if info.is_file() => Ok(info),
        Ok(_) => Err(Refusal::Io(io::Error::other("expected a file, found something else"))),
        Err(error) => Err(Refusal::Io(error)),
    };
    check(fs::metadata(path))?;
    let file = File::open(path).map_err(Refusal::Io)?;
    let info = check(file.metadata())?;
    match writers(&info) {
        None => Ok(file),
        Some(reason) => Err(Refusal::Writable(reason)),
    }
}

/// Creates a file of at most this mode; one of this name, or a link, goes.
pub(crate) fn replace(path: &Path, mode: u32) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => create(path, mode),
    }
}

/// Creates a file of at most this mode; an error where one is, or a link.
pub(crate) fn create(path: &Path, mode: u32) -> io::Result<File> {
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
            replace(&path, mode).unwrap();
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
}
