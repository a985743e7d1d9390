//! The priority of threads whose work can wait.

/// Steps of niceness: a thread gets a tenth of a processor beside one that computes for an engine, and
/// all of it where there is no other.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// Lets the calling thread, and those that it starts, run after others: for work on large requests,
/// so that it takes little from the engines. On Linux alone; elsewhere a thread has no priority of its
/// own that any user may lower, or it cannot be told apart from that of the process.
pub fn lower_priority() {
    #[cfg(target_os = "linux")]
    {
        // Where the system refuses, the work takes its share as before.
        let lowered = rustix::process::setpriority_process(None, NICENESS);
        if let Err(error) = lowered {
            tracing::debug!("cannot change the priority of a thread: {error}");
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use rustix::process::getpriority_process;

    #[test]
    fn a_thread_and_those_it_starts_run_after_others() {
        let before = getpriority_process(None).unwrap();
        let (own, started) = std::thread::spawn(|| {
            lower_priority();
            let started = std::thread::spawn(|| getpriority_process(None)).join().unwrap();
            (getpriority_process(None).unwrap(), started.unwrap())
        })
        .join()
        .unwrap();
        assert_eq!((own, started), (NICENESS, NICENESS));
        assert_eq!(getpriority_process(None).unwrap(), before);
    }
}
