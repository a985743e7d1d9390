//! The servers that are asked: how each is started, when it is ready, its memory, its end.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::client::Client;
use crate::shell;

/// How long a server may take until it is healthy.
const START_LIMIT: Duration = Duration::from_secs(600);
/// How long a server may take to end when it is asked to.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// How long a request may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(3600);

/// A kind of server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `realizar serve`.
    Realizar,
    /// `realizar serve` with no option but its address.
    RealizarDefaults,
    /// llama.cpp's llama-server.
    Llama,
    /// A server that runs already, at this address.
    Running { url: String },
}

/// A server that takes part.
#[derive(Clone, Debug)]
pub(crate) struct Contender {
    pub(crate) label: String,
    pub(crate) kind: Kind,
    /// Empty for a server that runs already.
    pub(crate) program: PathBuf,
    pub(crate) extra: Vec<String>,
}

/// How a server is set up.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) model: PathBuf,
    pub(crate) threads: usize,
    /// Requests that run at the same time.
    pub(crate) parallel: usize,
    /// Tokens that the longest request may have, prompt and answer together.
    pub(crate) request_len: usize,
    /// Requests that may wait; the server's own default without it.
    pub(crate) queue: Option<usize>,
    /// Whether keys and values of earlier prompts may be used again.
    pub(crate) prefix_cache: bool,
}

impl Setup {
    /// A model for [`Kind::RealizarDefaults`], which takes nothing else from a setup.
    pub(crate) fn defaults(model: PathBuf) -> Self {
        Self { model, threads: 0, parallel: 0, request_len: 0, queue: None, prefix_cache: true }
    }
}

impl Contender {
    /// Whether it is what this repository builds.
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self.kind, Kind::Realizar | Kind::RealizarDefaults)
    }

    /// The command line, or `None` for a server that runs already.
    pub(crate) fn command(&self, setup: &Setup, port: u16) -> Option<Command> {
        let &Setup { threads, parallel, request_len, queue, prefix_cache, .. } = setup;
        let mut command = shell::command(&self.program);
        match self.kind {
            Kind::Realizar => {
                command.arg("serve").arg(&setup.model);
                let line = format!(
                    "--host 127.0.0.1 --port {port} -t {threads} --parallel {parallel} \
                     --ctx {request_len}"
                );
                command.args(line.split_whitespace());
                if let Some(queue) = queue {
                    command.args(["--queue", &queue.to_string()]);
                }
                if !prefix_cache {
                    command.arg("--no-prefix-cache");
                }
            }
            Kind::RealizarDefaults => {
                command.arg("serve").arg(&setup.model);
                command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
            }
            Kind::Llama => {
                command.arg("-m").arg(&setup.model);
                // The context is divided among the slots, each of which has a multiple of 256.
                let ctx = parallel * request_len.next_multiple_of(256);
                let line = format!(
                    "--host 127.0.0.1 --port {port} -t {threads} -np {parallel} -c {ctx} \
                     --no-webui --metrics"
                );
                command.args(line.split_whitespace());
                if !prefix_cache {
                    command.args(["--no-cache-prompt", "--cache-ram", "0"]);
                }
            }
            Kind::Running { .. } => return None,
        }
        command.args(&self.extra);
        Some(command)
    }

    /// Starts the server and waits until it is healthy.
    pub(crate) fn start(&self, setup: &Setup) -> Result<Server> {
        self.start_logging(setup, None)
    }

    /// As [`Self::start`], with a log that goes elsewhere than to a file.
    pub(crate) fn start_logging(&self, setup: &Setup, to: Option<Stdio>) -> Result<Server> {
        if let Kind::Running { url } = &self.kind {
            let client = Client::new(url, REQUEST_LIMIT)?;
            return Ok(Server { child: None, client, port: 0, log: PathBuf::new() });
        }
        let port = free_port()?;
        let mut command = self.command(setup, port).context("no command")?;
        let folder = shell::cache_dir().join("logs");
        fs::create_dir_all(&folder)?;
        let log = folder.join(format!("{}.log", self.label.replace(['/', ' '], "-")));
        let file = File::create(&log).with_context(|| log.display().to_string())?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?);
        command.stderr(to.unwrap_or_else(|| file.into()));
        let shown = shell::show(&command);
        let child = command.spawn().with_context(|| format!("start {shown}"))?;
        // The child is ended by the guard if what follows fails.
        let mut guard = Guard(Some(child));
        let url = format!("http://127.0.0.1:{port}");
        let health = ureq::Agent::config_builder()
            .proxy(None)
            .max_idle_connections(0)
            .timeout_global(Some(Duration::from_secs(10)))
            .build()
            .new_agent();
        let start = Instant::now();
        while health.get(format!("{url}/health")).call().is_err() {
            if let Some(status) = guard.child().try_wait()? {
                bail!("{shown} exited with {status}: {}", last_line(&log));
            }
            ensure!(start.elapsed() < START_LIMIT, "{shown} is not healthy: {}", last_line(&log));
            thread::sleep(Duration::from_millis(20));
        }
        let client = Client::new(&url, REQUEST_LIMIT)?;
        Ok(Server { child: guard.0.take(), client, port, log })
    }

    /// What the program calls its version, as far as it tells.
    pub(crate) fn version(&self) -> String {
        if let Kind::Running { url } = &self.kind {
            return format!("runs at {url}");
        }
        let Ok(out) = shell::command(&self.program).arg("--version").output() else {
            return String::new();
        };
        let text = [out.stdout, out.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        let mut lines = text.lines().map(str::trim);
        // llama-server may first tell of its devices.
        let line = lines.clone().find(|line| line.starts_with("version"));
        line.or_else(|| lines.find(|line| !line.is_empty())).unwrap_or_default().to_owned()
    }
}

/// A server that answers. One that was started here is killed when this is dropped.
pub(crate) struct Server {
    child: Option<Child>,
    pub(crate) client: Client,
    /// On 127.0.0.1; 0 for a server that ran already.
    pub(crate) port: u16,
    log: PathBuf,
}

impl Server {
    /// The resident memory, now and at most, where the system tells and the server was started
    /// here.
    pub(crate) fn memory(&self) -> Option<Memory> {
        let id = self.child.as_ref()?.id();
        Memory::parse(&fs::read_to_string(format!("/proc/{id}/status")).ok()?)
    }

    /// As [`Self::memory`], with a peak that counts from now on.
    pub(crate) fn reset_peak(&self) -> Result<Option<Memory>> {
        let Some(id) = self.child.as_ref().map(Child::id) else { return Ok(None) };
        if !cfg!(target_os = "linux") {
            return Ok(None);
        }
        // proc_pid_clear_refs(5): 5 resets the peak to what is resident.
        let path = format!("/proc/{id}/clear_refs");
        fs::write(&path, "5").with_context(|| path.clone())?;
        Ok(self.memory())
    }

    /// Asks the server to end, as a service manager would.
    #[cfg(unix)]
    pub(crate) fn terminate(&self) -> Result<()> {
        let child = self.child.as_ref().context("a server that ran already is not ended")?;
        let id = rustix::process::Pid::from_child(child);
        Ok(rustix::process::kill_process(id, rustix::process::Signal::TERM)?)
    }

    /// Asks the server to end, as a service manager would.
    #[cfg(not(unix))]
    pub(crate) fn terminate(&self) -> Result<()> {
        bail!("this system has no SIGTERM")
    }

    /// Waits for the end after [`Self::terminate`].
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let child = self.child.as_mut().context("a server that ran already is not waited for")?;
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                self.child = None;
                return Ok(status);
            }
            ensure!(start.elapsed() < limit, "the server still runs after {limit:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends a server that was started here by force.
    pub(crate) fn kill(&mut self) {
        drop(Guard(self.child.take()));
    }

    /// Ends a server that was started here: by a signal where there are signals, by force where
    /// there are none or the server does not follow.
    pub(crate) fn stop(mut self) -> Result<()> {
        if self.child.is_none() {
            return Ok(());
        }
        let ended = self.terminate().and_then(|()| self.wait(STOP_LIMIT));
        if let Err(error) = ended
            && cfg!(unix)
        {
            bail!("stop the server: {error:#}; its last line: {}", last_line(&self.log));
        }
        Ok(())
    }

    /// The end of what the server printed.
    pub(crate) fn last_line(&self) -> String {
        last_line(&self.log)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(Guard(self.child.take()));
    }
}

/// A child that is killed when this is dropped.
struct Guard(Option<Child>);

impl Guard {
    fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("the child is taken at the end")
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // A child that has ended already is not an error here.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Resident memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) now_bytes: u64,
    pub(crate) peak_bytes: u64,
}

impl Memory {
    /// From the text of `/proc/PID/status`.
    fn parse(status: &str) -> Option<Self> {
        let bytes = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
        };
        Some(Self { now_bytes: bytes("VmRSS:")?, peak_bytes: bytes("VmHWM:")? })
    }
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

fn last_line(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("no message").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_gets_its_options() {
        let contender = |kind| Contender {
            label: String::new(),
            kind,
            program: "program".into(),
            extra: vec!["--more".to_owned()],
        };
        let setup = Setup {
            model: "m.gguf".into(),
            threads: 2,
            parallel: 4,
            request_len: 300,
            queue: Some(8),
            prefix_cache: false,
        };
        let line = |kind| {
            let command = contender(kind).command(&setup, 99)?;
            let words = std::iter::once(command.get_program()).chain(command.get_args());
            Some(words.map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(
            line(Kind::Realizar).as_deref(),
            Some(
                "program serve m.gguf --host 127.0.0.1 --port 99 -t 2 --parallel 4 --ctx 300 \
                 --queue 8 --no-prefix-cache --more"
            )
        );
        assert_eq!(
            line(Kind::Llama).as_deref(),
            Some(
                "program -m m.gguf --host 127.0.0.1 --port 99 -t 2 -np 4 -c 2048 --no-webui \
                 --metrics --no-cache-prompt --cache-ram 0 --more"
            )
        );
        assert_eq!(line(Kind::Running { url: String::new() }), None);
    }

    #[test]
    fn memory_is_read_from_the_status() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        let want = Memory { now_bytes: 1 << 20, peak_bytes: 2 << 20 };
        assert_eq!(Memory::parse(status), Some(want));
        assert_eq!(Memory::parse("Name:\tx\n"), None);
    }
}
