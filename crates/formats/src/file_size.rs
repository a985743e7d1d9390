//! The limit on file sizes (`RLIMIT_FSIZE`, `ulimit -f`).
//!
//! A write beyond the limit raises `SIGXFSZ`, which by default kills the process: a log or a cache could
//! end a server. If the signal is ignored, the write fails with an error.

/// Ignores `SIGXFSZ`, so that a write beyond the limit on file sizes fails with
/// [`FileTooLarge`](std::io::ErrorKind::FileTooLarge) instead of killing the process.
///
/// Programs call this once at start-up. Libraries must not, because signal handlers belong to the whole
/// process. Does nothing on Windows, which has no such limit.
///
/// # Errors
/// If the system refuses to ignore the signal.
#[cfg(unix)]
#[expect(unsafe_code, reason = "the handler of a signal")]
pub fn survive_file_size_limit() -> std::io::Result<()> {
    // SAFETY: the signal is ignored, so nothing of this program runs when it is raised.
    if unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) } == libc::SIG_ERR {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

/// Does nothing: Windows has no limit on file sizes.
///
/// # Errors
/// None.
#[cfg(not(unix))]
pub fn survive_file_size_limit() -> std::io::Result<()> {
    Ok(())
}
