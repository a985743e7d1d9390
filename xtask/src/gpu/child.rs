//! A process with a time limit: what it printed, how it ended, how long it took.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::shell;

/// How often a process is polled.
const TICK: Duration = Duration::from_millis(20);

/// A process that has ended, or was ended.
pub(super) struct Ended {
    /// None if it ran into its limit.
    pub(super) status: Option<ExitStatus>,
    pub(super) stdout: String,
    pub(super) stderr: String,
    pub(super) time: Duration,
}

/// Runs `command` until it ends, or for `limit`. What it prints goes at the end of the file `log`, where there is one, as it is
/// printed.
pub(super) fn run(mut command: Command, limit: Duration, log: Option<&Path>) -> Result<Ended> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut from = 0;
    if let Some(path) = log {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.with_context(|| path.display().to_string())?;
        from = file.metadata()?.len();
        command.stdout(file);
    }
    // What it starts itself ends with it.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let start = Instant::now();
    let mut child = command.spawn().with_context(|| format!("start {}", shell::show(&command)))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let readers = (thread::spawn(move || text(stdout)), thread::spawn(move || text(stderr)));
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if start.elapsed() >= limit {
            kill(&mut child);
            child.wait()?;
            break None;
        }
        thread::sleep(TICK);
    };
    let time = start.elapsed();
    let [mut stdout, stderr] = [readers.0, readers.1].map(|r| r.join().unwrap_or_default());
    if let Some(path) = log {
        let mut file = File::open(path).with_context(|| path.display().to_string())?;
        file.seek(SeekFrom::Start(from))?;
        stdout = text(Some(file));
    }
    Ok(Ended { status, stdout, stderr, time })
}

/// Ends a process and what it has started.
fn kill(child: &mut Child) {
    #[cfg(unix)]
    if let Some(id) = rustix::process::Pid::from_raw(child.id().cast_signed()) {
        // Where the group is gone, so is the process.
        let _ = rustix::process::kill_process_group(id, rustix::process::Signal::KILL);
    }
    let _ = child.kill();
}

/// Everything that comes out of a pipe.
fn text(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        // What was read before an error is kept: the status tells whether the program failed.
        let _ = pipe.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_ended_at_its_limit_with_what_it_started() {
        let shell = |text: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", text]);
            command
        };
        let ended =
            run(shell("echo out; echo err >&2; exit 3"), Duration::from_secs(60), None).unwrap();
        assert_eq!(ended.status.and_then(|s| s.code()), Some(3));
        assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("out\n", "err\n"));
        // The shell waits for another process, which holds the pipes as well.
        let ended =
            run(shell("echo first; sleep 1000; true"), Duration::from_millis(200), None).unwrap();
        assert!(ended.status.is_none() && ended.time < Duration::from_secs(60));
        assert_eq!(ended.stdout, "first\n");
        // A file has it all, also of a process that was ended.
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        for (expected, whole) in [("a\n", "a\n"), ("a\n", "a\na\n")] {
            let ended = run(shell("echo a; sleep 1000"), Duration::from_millis(200), Some(&log));
            assert_eq!(ended.unwrap().stdout, expected);
            assert_eq!(std::fs::read_to_string(&log).unwrap(), whole);
        }
        assert!(run(Command::new("/no/such/program"), Duration::ZERO, None).is_err());
    }
}
