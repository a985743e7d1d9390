//! Running a contender: what it printed, how long its process lived, and the most memory it had.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use wait4::Wait4;

use crate::shell;

/// A process that ended well.
pub(super) struct Finished {
    pub(super) stdout: String,
    /// From the start of the process to its end.
    pub(super) wall: Duration,
    /// The peak resident memory, pages of mapped files included.
    pub(super) peak_bytes: u64,
}

/// Runs `command` to its end; a status other than zero is an error with standard error's last line.
pub(super) fn run(mut command: Command) -> Result<Finished> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let start = Instant::now();
    let mut child = command.spawn().with_context(|| format!("start {}", shell::show(&command)))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let reader = thread::spawn(move || text(stderr));
    let stdout = text(stdout);
    let finished = child.wait4().with_context(|| format!("wait for {}", shell::show(&command)))?;
    let wall = start.elapsed();
    let stderr = reader.join().unwrap_or_default();
    if !finished.status.success() {
        let last = stderr.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("no message");
        // The program's folder is of no interest to readers of the run.
        let path = Path::new(command.get_program());
        let program = path.file_name().unwrap_or_default().to_string_lossy();
        let last = last.trim().replace(&*path.to_string_lossy(), &program);
        bail!("{program} exited with {}: {last}", finished.status);
    }
    Ok(Finished { stdout, wall, peak_bytes: finished.rusage.maxrss })
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
    fn output_and_memory_are_reported() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2"]);
        let finished = run(command).unwrap();
        assert_eq!(finished.stdout, "out\n");
        assert!(finished.peak_bytes > 100_000, "{}", finished.peak_bytes);
        let mut command = Command::new("sh");
        command.args(["-c", "echo first >&2; echo last >&2; exit 3"]);
        let error = run(command).err().unwrap().to_string();
        assert!(error.contains("3") && error.ends_with("last"), "{error}");
    }
}
