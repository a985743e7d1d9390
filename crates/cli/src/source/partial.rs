//! A download that is not complete: the file that it grows in, and beside it the validator with
//! which the next attempt continues it.
//!
//! Both are in the cache's staging folder. What lies there under their names is replaced or
//! refused when it is a link or no file, so nothing is written through it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use realizar_formats::read_regular_text;

use super::cache::create_dir;

/// Bytes of a validator; an ETag is some dozens.
const MAX_VALIDATOR: usize = 1024;

/// Where one file is downloaded to.
#[derive(Debug, Clone)]
pub(super) struct Partial {
    path: PathBuf,
    validator: PathBuf,
}

impl Partial {
    pub(super) fn new(path: PathBuf) -> Self {
        let validator = path.with_extension("validator");
        Self { path, validator }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Length of the partial file; `None` if nothing can be resumed.
    pub(super) fn len(&self) -> Option<u64> {
        Some(regular(&self.path)?.len()).filter(|&len| len > 0)
    }

    /// The validator of the partial file.
    pub(super) fn validator(&self) -> Option<String> {
        regular(&self.validator)?;
        read_regular_text(&self.validator, MAX_VALIDATOR).ok().filter(|text| !text.is_empty())
    }

    /// The file to continue, or, where `offset` is 0, a new one with this validator.
    pub(super) fn open(&self, offset: u64, validator: Option<&str>) -> Result<File> {
        let context = || format!("cannot write {}", self.path.display());
        if offset > 0 {
            let file =
                open_no_follow(&self.path, File::options().append(true)).with_context(context)?;
            let len = file.metadata().with_context(context)?.len();
            if len != offset {
                bail!("{} changed while it was being resumed", self.path.display());
            }
            return Ok(file);
        }
        if let Some(dir) = self.path.parent() {
            create_dir(dir)?;
        }
        let file = create_anew(&self.path).with_context(context)?;
        remove(&self.validator);
        if let Some(text) = validator.filter(|text| text.len() <= MAX_VALIDATOR) {
            let mut file = create_anew(&self.validator).with_context(context)?;
            file.write_all(text.as_bytes()).with_context(context)?;
        }
        Ok(file)
    }

    /// Moves the complete file to where nothing is yet.
    pub(super) fn finish(&self, to: &Path) -> Result<()> {
        fs::rename(&self.path, to)
            .with_context(|| format!("cannot move {} to {}", self.path.display(), to.display()))?;
        remove(&self.validator);
        Ok(())
    }

    pub(super) fn discard(&self) {
        remove(&self.path);
        remove(&self.validator);
    }
}

/// Creates a file; a file or link of this name goes.
fn create_anew(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => File::create_new(path),
    }
}

/// Opens a file that other processes lock, and creates it where there is none; nothing is written.
/// An error where the name is a link.
pub(super) fn open_lock(path: &Path) -> io::Result<File> {
    open_no_follow(path, File::options().write(true).create(true).truncate(false))
}

fn open_no_follow(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // A pipe is not waited for.
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        options.custom_flags(flags.bits().cast_signed());
    }
    #[cfg(windows)]
    {
        use std::os::windows::fs::OpenOptionsExt;
        const FILE_FLAG_OPEN_REPARSE_POINT: u32 = 0x0020_0000;
        options.custom_flags(FILE_FLAG_OPEN_REPARSE_POINT);
    }
    let file = options.open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("it is not a regular file"))
    }
}

/// What is known about a file that is not a link.
fn regular(path: &Path) -> Option<fs::Metadata> {
    fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)
}

fn remove(path: &Path) {
    if let Err(e) = fs::remove_file(path)
        && e.kind() != io::ErrorKind::NotFound
    {
        tracing::debug!("cannot remove {}: {e}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_continued_with_its_validator() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let partial = Partial::new(dir.path().join("sub/k.partial"));
        assert_eq!((partial.len(), partial.validator()), (None, None));
        partial.open(0, Some("\"v\"")).expect("new").write_all(b"abc").expect("write");
        assert_eq!((partial.len(), partial.validator().as_deref()), (Some(3), Some("\"v\"")));
        partial.open(3, None).expect("continued").write_all(b"de").expect("write");
        assert!(partial.open(3, None).is_err(), "another length");
        let to = dir.path().join("whole");
        partial.finish(&to).expect("finish");
        assert_eq!(fs::read(to).expect("read"), b"abcde");
        assert_eq!(fs::read_dir(dir.path().join("sub")).expect("read").count(), 0);
    }

    #[cfg(unix)]
    #[test]
    fn links_are_not_written_through() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().expect("a temporary directory");
        let target = dir.path().join("target");
        fs::write(&target, "precious").expect("write");
        let partial = Partial::new(dir.path().join("k.partial"));
        for _ in 0..2 {
            symlink(&target, dir.path().join("k.partial")).expect("link");
            symlink(&target, dir.path().join("k.validator")).expect("link");
            assert_eq!((partial.len(), partial.validator()), (None, None));
            assert!(partial.open(8, None).is_err() && open_lock(partial.path()).is_err());
            partial.open(0, Some("v")).expect("new").write_all(b"abc").expect("write");
            assert_eq!(fs::read(&target).expect("read"), b"precious");
            assert_eq!(fs::read(partial.path()).expect("read"), b"abc");
            partial.discard();
        }
    }
}
