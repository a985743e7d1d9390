//! The number of files and connections that the process may have open.

use realizar_server::ConnectionLimits;

/// Descriptors that connections leave to refused connections, model files, GPUs, tools and logs.
const RESERVE: usize = 320;

/// Raises the limit of open files as far as the system lets the process, and lowers the limits of
/// connections to what it has room for.
pub(super) fn fit(limits: &mut ConnectionLimits) {
    let Some(n_files) = raise() else { return };
    let (open, per_address) = room(n_files);
    if open < limits.open {
        tracing::warn!(
            "at most {open} connections instead of {}: the process may open {n_files} files (ulimit -n)",
            limits.open
        );
        limits.open = open;
        limits.per_address = limits.per_address.min(per_address);
    }
}

/// How many connections there is room for, and how many of these one address may have, so that
/// others have some, too.
fn room(n_files: usize) -> (usize, usize) {
    let open = n_files.saturating_sub(RESERVE).max(n_files / 2);
    (open, open / 4 * 3)
}

/// The number of files that may be open; `None` if there is no limit.
#[cfg(unix)]
fn raise() -> Option<usize> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // macOS has a further limit, which the hard one does not tell.
    const MACOS: u64 = 10_240;
    let found = getrlimit(Resource::Nofile);
    let set = |n| {
        let limit = Rlimit { current: n, maximum: found.maximum };
        setrlimit(Resource::Nofile, limit).is_ok()
    };
    if !set(found.maximum) && found.current.is_some_and(|n| n < MACOS) && !set(Some(MACOS)) {
        tracing::debug!("the limit of open files cannot be raised");
    }
    let current = getrlimit(Resource::Nofile).current?;
    Some(usize::try_from(current).unwrap_or(usize::MAX))
}

/// Sockets of this system are not counted among files.
#[cfg(not(unix))]
fn raise() -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_the_rest() {
        assert_eq!([256, 1024, 4096].map(room), [(128, 96), (704, 528), (3776, 2832)]);
    }
}
