//! Opening and reading regular files; all files of a model are opened here.
//!
//! A name in a model's directory may link to a pipe, whose opening waits for a writer, or to an endless
//! device. Neither is opened, and files are read only up to a limit.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Opens a regular file, or a link to one, for reading.
///
/// # Errors
/// If it cannot be opened, or is a directory, a pipe, a socket or a device.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // Checked before opening, because opening a device may have side effects.
    check_regular(std::fs::metadata(path)?)?;
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    // If it has become a pipe in between, this avoids waiting for a writer.
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let file = options.open(path)?;
    check_regular(file.metadata()?)?;
    Ok(file)
}

/// The bytes of a regular file, at most `limit`.
///
/// # Errors
/// As [`open_regular`], or if the file is larger than the limit or cannot be read.
pub fn read_regular(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    let too_large = |len: u64| {
        let text = format!("the file is too large: expected at most {limit} bytes, found {len}");
        io::Error::new(ErrorKind::FileTooLarge, text)
    };
    let len = file.metadata()?.len();
    if len > limit as u64 {
        return Err(too_large(len));
    }
    // The file may grow while it is read.
    let mut bytes = Vec::with_capacity(len as usize);
    file.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > limit { Err(too_large(bytes.len() as u64)) } else { Ok(bytes) }
}

/// The text of a regular file of at most `limit` bytes.
///
/// # Errors
/// As [`read_regular`], or if the file is not UTF-8.
pub fn read_regular_text(path: &Path, limit: usize) -> io::Result<String> {
    let text = String::from_utf8(read_regular(path, limit)?);
    text.map_err(|_| io::Error::new(ErrorKind::InvalidData, "the file is not UTF-8"))
}

/// Fails unless the file is regular.
pub fn check_regular(info: Metadata) -> io::Result<Metadata> {
    match info.is_file() {
        true => Ok(info),
        false => {
            let found = if info.is_dir() { "a folder" } else { "a pipe, a socket or a device" };
            Err(io::Error::other(format!("expected a regular file, found {found}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_up_to_their_limit() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("a");
        std::fs::write(&path, "four").expect("written");
        assert_eq!(read_regular(&path, 4).expect("read"), b"four");
        assert_eq!(read_regular_text(&path, 9).expect("read"), "four");
        let error = read_regular(&path, 3).expect_err("too large").to_string();
        assert_eq!(error, "the file is too large: expected at most 3 bytes, found 4");
        std::fs::write(&path, b"\xff").expect("written");
        let error = read_regular_text(&path, 9).expect_err("no text").to_string();
        assert_eq!(error, "the file is not UTF-8");
        let kind = read_regular(&dir.path().join("b"), 3).expect_err("missing").kind();
        assert_eq!(kind, ErrorKind::NotFound);
    }

    #[cfg(unix)]
    #[test]
    fn nothing_but_files_is_opened() {
        use std::os::unix::fs::symlink;
        use std::os::unix::net::UnixListener;

        let dir = tempfile::tempdir().expect("a folder");
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("file"), "a").expect("written");
        symlink(path("file"), path("link")).expect("a link");
        assert_eq!(read_regular(&path("link"), 9).expect("read"), b"a");
        symlink("/dev/zero", path("device")).expect("a link");
        symlink(dir.path(), path("folder")).expect("a link");
        let _socket = UnixListener::bind(path("socket")).expect("a socket");
        let made = std::process::Command::new("mkfifo").arg(path("pipe")).status();
        assert!(made.expect("mkfifo").success());
        for (name, found) in [
            ("device", "a pipe, a socket or a device"),
            ("socket", "a pipe, a socket or a device"),
            ("pipe", "a pipe, a socket or a device"),
            ("folder", "a folder"),
        ] {
            let error = read_regular(&path(name), 9).expect_err(name).to_string();
            assert_eq!(error, format!("expected a regular file, found {found}"), "{name}");
        }
    }
}
