//! Replicas behind something that exists already, under load while one of them is killed: what vllm-router, Ray
//! Serve and LiteLLM's proxy have in common.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::{Tried, Verdict};
use crate::load::client::{Client, Failure, joined};
use crate::load::workload::{Api, Ask, Workload};
use crate::shell;

pub(super) const REQUESTS: usize = 48;
const STREAMS: usize = 6;
/// How many answers there are when the replica is killed.
const KILL_AFTER: usize = 16;
const START_LIMIT: Duration = Duration::from_secs(120);
const STOP_LIMIT: Duration = Duration::from_secs(60);
pub(super) const REQUEST_LIMIT: Duration = Duration::from_secs(300);

/// One row: what was found, or why it failed.
pub(super) fn tried(row: &'static str, outcome: Result<String>) -> Tried {
    let (verdict, note) = match outcome {
        Ok(note) => (Verdict::Passed, note),
        Err(error) => (Verdict::Failed, format!("{error:#}")),
    };
    Tried { row, what: "a replica is killed".to_owned(), verdict, note }
}

/// What stands before the replicas: a process, which is killed when this is dropped.
pub(super) struct Front {
    child: Child,
    pub(super) client: Client,
}

impl Front {
    /// Starts it, logging to a file, and waits until it answers a request for `model`.
    pub(super) fn start(mut command: Command, log: &Path, port: u16, model: &str) -> Result<Self> {
        let file = File::create(log).with_context(|| log.display().to_string())?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let shown = shell::show(&command);
        let child = command.spawn().with_context(|| format!("start {shown}"))?;
        let client = Client::named(&format!("http://127.0.0.1:{port}"), model, REQUEST_LIMIT);
        let mut front = Self { child, client };
        front.ready().with_context(|| format!("{shown}; it tells in {}", log.display()))?;
        Ok(front)
    }

    /// Waits until it answers a request.
    fn ready(&mut self) -> Result<()> {
        let start = Instant::now();
        let ask = whole(Ask::greedy(Api::Completions, "", "Hello", 1));
        let client = self.client.limited(Duration::from_secs(10));
        loop {
            let Err(failure) = client.ask(&ask) else { return Ok(()) };
            if let Some(status) = self.child.try_wait()? {
                bail!("it exited with {status}");
            }
            ensure!(start.elapsed() < START_LIMIT, "it does not answer: {failure}");
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// Processes that run a program and descend from this one, in ascending order (Linux alone).
    pub(super) fn descendants(&self, program: &Path) -> Result<Vec<u32>> {
        let mut parents = HashMap::new();
        for entry in fs::read_dir("/proc").context("/proc, which only Linux has")? {
            let name = entry?.file_name();
            let Some(id) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            // A process may have ended by then.
            let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            if let Some(parent) = parent(&stat) {
                parents.insert(id, parent);
            }
        }
        let runs = |id: u32| fs::read_link(format!("/proc/{id}/exe")).is_ok_and(|p| p == program);
        let mut found: Vec<u32> = parents.keys().copied().collect();
        found.retain(|&id| descends(&parents, id, self.child.id()) && runs(id));
        found.sort_unstable();
        Ok(found)
    }

    /// Asks it to end and waits for it.
    pub(super) fn stop(mut self) -> Result<()> {
        signal("TERM", self.child.id())?;
        let start = Instant::now();
        while self.child.try_wait()?.is_none() {
            ensure!(start.elapsed() < STOP_LIMIT, "it still runs {STOP_LIMIT:?} after SIGTERM");
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        // A process that has ended already is not an error here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to a process.
pub(super) fn signal(name: &str, id: u32) -> Result<()> {
    shell::check(shell::command("kill").args([format!("-{name}"), id.to_string()]))
}

/// The parent's id in a text of `/proc/PID/stat`, in which a name of any letters stands in parentheses.
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn descends(parents: &HashMap<u32, u32>, id: u32, from: u32) -> bool {
    let mut ids = std::iter::successors(parents.get(&id), |id| parents.get(id));
    ids.any(|&parent| parent == from)
}

/// A request whose answer comes at once.
fn whole(ask: Ask) -> Ask {
    ask.with("stream", false).without("stream_options")
}

/// Requests of four groups with a beginning in common. Those for which `is_streamed` are streamed: the
/// beginning of an answer that a client has cannot be taken back, so no proxy could retry the request.
pub(super) fn asks(api: Api, is_streamed: impl Fn(usize) -> bool) -> Vec<Ask> {
    let groups = (0..4).map(|group| {
        let work = Workload { api, seed: 3, prompts: &[24, 48], shared: 300, max_tokens: 32 };
        work.asks(group, REQUESTS / 4)
    });
    let groups: Vec<Vec<Ask>> = groups.collect();
    let in_turn = (0..REQUESTS).map(|idx| (idx, groups[idx % 4][idx / 4].clone()));
    in_turn.map(|(idx, ask)| if is_streamed(idx) { ask } else { whole(ask) }).collect()
}

/// A request without a whole answer.
pub(super) struct Failed {
    pub(super) is_streamed: bool,
    /// Whether it is a stream that had begun for its client.
    pub(super) had_begun: bool,
    pub(super) why: String,
}

/// Sends the requests, `STREAMS` at a time, and calls `kill` when some are answered.
pub(super) fn under_load<T>(
    client: &Client,
    asks: &[Ask],
    kill: impl FnOnce() -> T,
) -> (Vec<Failed>, T) {
    let answered = AtomicUsize::new(0);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut failures = Vec::new();
        while let Some(ask) = asks.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(failure) = client.ask(ask) {
                let is_streamed = ask.body["stream"] == true;
                // With status 200 a stream has begun, whether or not it has carried text.
                let had_begun = is_streamed && !matches!(failure, Failure::Status { .. });
                failures.push(Failed { is_streamed, had_begun, why: failure.to_string() });
            }
            answered.fetch_add(1, Ordering::Relaxed);
        }
        failures
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..STREAMS).map(|_| scope.spawn(work)).collect();
        while answered.load(Ordering::Relaxed) < KILL_AFTER {
            thread::sleep(Duration::from_millis(5));
        }
        let killed = kill();
        (threads.into_iter().flat_map(joined).collect(), killed)
    })
}

/// Which failures clients may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Allowed {
    /// Streams that had begun for their clients break off.
    Begun,
    /// Streams that had begun at the replica fail, whether or not their clients have a part.
    Streams,
}

/// The number of streams that failed, if nothing else did. They were at most as many as ran at a time.
pub(super) fn failed_streams(failures: &[Failed], allowed: Allowed) -> Result<usize> {
    let is_allowed = |failed: &&Failed| match allowed {
        Allowed::Begun => failed.had_begun,
        Allowed::Streams => failed.is_streamed,
    };
    if let Some(failed) = failures.iter().find(|failed| !is_allowed(failed)) {
        let kind = if failed.is_streamed { "a stream" } else { "not a stream" };
        bail!(
            "{} of {REQUESTS} requests failed, for instance, {kind}: {}",
            failures.len(),
            failed.why
        );
    }
    ensure!(failures.len() <= STREAMS, "{} streams failed", failures.len());
    Ok(failures.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn requests_come_in_four_groups() {
        let asks = asks(Api::Completions, |idx| idx % 2 == 1);
        assert_eq!(asks.len(), REQUESTS);
        let beginning = |ask: &Ask| {
            let prompt = ask.body["prompt"].as_str().unwrap();
            prompt.split_once("\n\n").unwrap().0.to_owned()
        };
        let groups: HashSet<String> = asks.iter().map(beginning).collect();
        assert_eq!(groups.len(), 4);
        let streamed: Vec<bool> = asks.iter().map(|ask| ask.body["stream"] == true).collect();
        assert_eq!(streamed[..4], [false, true, false, true]);
        assert!(
            asks.iter()
                .all(|a| a.body.get("stream_options").is_some() == (a.body["stream"] == true))
        );
    }

    #[test]
    fn descendants_are_told_from_others() {
        assert_eq!(parent("7 (a) b) S 3 7 7 0"), Some(3));
        assert_eq!(parent("7"), None);
        let parents = HashMap::from([(7, 3), (3, 2), (2, 1), (9, 1)]);
        let found = [7, 3, 2, 9].map(|id| descends(&parents, id, 2));
        assert_eq!(found, [true, true, false, false]);
    }

    #[test]
    fn only_streams_may_fail() {
        let failed = |is_streamed, had_begun| {
            let why = "why".to_owned();
            Failed { is_streamed, had_begun, why }
        };
        let check = |list: &[Failed], begun: Result<usize, &str>, streams: Result<usize, &str>| {
            for (allowed, expected) in [(Allowed::Begun, begun), (Allowed::Streams, streams)] {
                let found = failed_streams(list, allowed).map_err(|error| error.to_string());
                assert_eq!(found, expected.map_err(str::to_owned), "{allowed:?}");
            }
        };
        check(&[], Ok(0), Ok(0));
        check(&[failed(true, true), failed(true, true)], Ok(2), Ok(2));
        let refused = "2 of 48 requests failed, for instance, a stream: why";
        check(&[failed(true, true), failed(true, false)], Err(refused), Ok(2));
        let whole = "1 of 48 requests failed, for instance, not a stream: why";
        check(&[failed(false, false)], Err(whole), Err(whole));
        let many: Vec<Failed> = (0..=STREAMS).map(|_| failed(true, true)).collect();
        check(&many, Err("7 streams failed"), Err("7 streams failed"));
    }
}
