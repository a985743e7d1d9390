//! Files that may grow no further (`RLIMIT_FSIZE`, `ulimit -f`).
//!
//! The system raises `SIGXFSZ` for a write beyond the limit, which ends a process that does not
//! know the signal: a log or a cache would end a server. Ignored, the write fails as any other.

/// From now on, a write beyond the limit on the size of files fails with
/// [`FileTooLarge`](std::io::ErrorKind::FileTooLarge) instead of ending the process by `SIGXFSZ`.
///
/// Programs call this once at their start; a library leaves it to its program, as the handler of
/// a signal belongs to the process. Windows has no such limit, and there this does nothing.
///
/// # Errors
/// If the system refuses.
#[cfg(unix)]
#[expect(unsafe_code, reason = "the handler of a signal")]
pub fn survive_file_size_limit() -> std::io::Result<()> {
    // SAFETY: the signal is ignored, so nothing of this program runs when it is raised.
    if unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) } == libc::SIG_ERR {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

/// Windows has no such limit.
///
/// # Errors
/// None.
#[cfg(not(unix))]
pub fn survive_file_size_limit() -> std::io::Result<()> {
    Ok(())
}
