//! vllm-router in front of two replicas: requests with common prefixes come in and go to where their
//! prefixes are, one replica is killed, and no client sees a failure.

use std::fs::File;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use realizar_kvcache::PAGE_LEN;

use super::install::{Environment, direct, program};
use super::{Tried, Verdict};
use crate::load::client::{Client, joined};
use crate::load::metrics;
use crate::load::server::{Contender, Server, Setup, free_port};
use crate::load::workload::{Api, Ask, Workload};
use crate::shell;

/// The row's name.
pub(super) const NAME: &str = "vllm-router";

const ENVIRONMENT: Environment = Environment::Python(&["vllm-router==0.1.17"]);

const STREAMS: usize = 6;
const REQUESTS: usize = 48;
/// How many answers there are when the replica is killed.
const KILL_AFTER: usize = 16;
const START_LIMIT: Duration = Duration::from_secs(60);
const REQUEST_LIMIT: Duration = Duration::from_secs(300);

/// How the router chooses a replica.
#[derive(Clone, Copy, Debug)]
pub(super) enum Policy {
    /// By the texts that it has sent to each.
    CacheAware,
    /// By the pages that each tells it of.
    KvAware,
}

impl Policy {
    pub(super) const ALL: [Self; 2] = [Self::CacheAware, Self::KvAware];

    fn name(self) -> &'static str {
        match self {
            Self::CacheAware => "cache_aware",
            Self::KvAware => "kv_aware",
        }
    }

    fn row(self) -> &'static str {
        match self {
            Self::CacheAware => "vllm-router, cache_aware",
            Self::KvAware => "vllm-router, kv_aware",
        }
    }
}

/// Routes, kills, and tells how the clients fared.
pub(super) fn run(contender: &Contender, setup: &Setup, policy: Policy) -> Result<Tried> {
    let (verdict, note) = match routed(contender, setup, policy) {
        Ok(note) => (Verdict::Passed, note),
        Err(error) => (Verdict::Failed, format!("{error:#}")),
    };
    Ok(Tried { row: policy.row(), what: "a replica is killed".to_owned(), verdict, note })
}

/// A replica that publishes the changes of its prefix cache, and where it does.
fn replica(name: &str, contender: &Contender, setup: &Setup) -> Result<(Server, String)> {
    let endpoint = format!("tcp://127.0.0.1:{}", free_port()?);
    let mut contender = Contender { label: name.to_owned(), ..contender.clone() };
    contender.extra.extend(["--kv-events".to_owned(), endpoint.clone()]);
    Ok((contender.start(setup)?, endpoint))
}

/// The router's process, which is killed when this is dropped.
struct Router(Child);

impl Drop for Router {
    fn drop(&mut self) {
        // A router that has ended already is no error here.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn routed(contender: &Contender, setup: &Setup, policy: Policy) -> Result<String> {
    let folder = ENVIRONMENT.install(NAME)?;
    let (first, events) = replica("replica-1", contender, setup)?;
    let (second, other_events) = replica("replica-2", contender, setup)?;
    let (port, prometheus) = (free_port()?, free_port()?);
    let mut command = shell::command(program(&folder, "vllm-router"));
    command.current_dir(&folder);
    command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
    command.args(["--prometheus-port", &prometheus.to_string(), "--policy", policy.name()]);
    command.args(["--worker-urls", first.client.url(), second.client.url()]);
    if matches!(policy, Policy::KvAware) {
        for (server, events) in [(&first, events), (&second, other_events)] {
            command.args(["--kv-event-source", &format!("{}={events}", server.client.url())]);
        }
        command.args(["--kv-event-model", &first.client.model]);
        command.args(["--kv-event-block-size", &PAGE_LEN.to_string()]);
    }
    direct(&mut command);
    let log = folder.join("router.log");
    let file = File::create(&log).with_context(|| log.display().to_string())?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let shown = shell::show(&command);
    let mut router = Router(command.spawn().with_context(|| format!("start {shown}"))?);
    let client = ready(&mut router, port, &first.client.model)
        .with_context(|| format!("{shown}; it tells in {}", log.display()))?;

    // Both replicas get their share before one is gone.
    let asks = asks();
    let answered = AtomicUsize::new(0);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut failures = Vec::new();
        while let Some(ask) = asks.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(failure) = client.ask(ask) {
                failures.push(failure.to_string());
            }
            answered.fetch_add(1, Ordering::Relaxed);
        }
        failures
    };
    let (failures, shares) = thread::scope(|scope| {
        let threads: Vec<_> = (0..STREAMS).map(|_| scope.spawn(work)).collect();
        while answered.load(Ordering::Relaxed) < KILL_AFTER {
            thread::sleep(Duration::from_millis(5));
        }
        let shares = [&first, &second].map(|server| metrics::finished(&server.client));
        drop(second);
        let failures: Vec<String> = threads.into_iter().flat_map(joined).collect();
        (failures, shares)
    });
    let [one, other] = shares;
    let (one, other) = (one?, other?);
    let found = metrics::found_prefixes(&first.client)?;
    drop(router);
    first.stop()?;
    if let Some(failure) = failures.first() {
        bail!("{} of {REQUESTS} requests failed, first: {failure}", failures.len());
    }
    ensure!(one > 0.0 && other > 0.0, "one replica got no request: {one} and {other} answers");
    Ok(format!(
        "{REQUESTS} answers; replicas had given {one} and {other} before the kill; the other had \
         {:.0} % of its prompts' tokens in the cache",
        100.0 * found
    ))
}

/// Waits until the router answers a request.
fn ready(router: &mut Router, port: u16, model: &str) -> Result<Client> {
    let start = Instant::now();
    let ask = Ask::greedy(Api::Completions, "", "Hello", 1).with("stream", false);
    let ask = ask.without("stream_options");
    loop {
        let url = format!("http://127.0.0.1:{port}");
        let client = Client::named(&url, model, REQUEST_LIMIT);
        let Err(failure) = client.ask(&ask) else { return Ok(client) };
        if let Some(status) = router.0.try_wait()? {
            bail!("the router ended with {status}");
        }
        ensure!(start.elapsed() < START_LIMIT, "the router does not answer: {failure}");
        thread::sleep(Duration::from_millis(200));
    }
}

/// Requests of four groups with a beginning in common. They are not streamed: the beginning of an
/// answer that a client has cannot be taken back, so a router could not send its request again.
fn asks() -> Vec<Ask> {
    let groups = (0..4).map(|group| {
        let work = Workload {
            api: Api::Completions,
            seed: 3,
            prompts: &[24, 48],
            shared: 300,
            max_tokens: 32,
        };
        work.asks(group, REQUESTS / 4)
    });
    let groups: Vec<Vec<Ask>> = groups.collect();
    let in_turn = (0..REQUESTS).map(|idx| groups[idx % 4][idx / 4].clone());
    in_turn.map(|ask| ask.with("stream", false).without("stream_options")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn requests_come_in_four_groups() {
        let asks = asks();
        assert_eq!(asks.len(), REQUESTS);
        let beginning = |ask: &Ask| {
            let prompt = ask.body["prompt"].as_str().unwrap();
            prompt.split_once("\n\n").unwrap().0.to_owned()
        };
        let groups: HashSet<String> = asks.iter().map(beginning).collect();
        assert_eq!(groups.len(), 4);
        assert!(asks.iter().all(|ask| ask.body["stream"] == false));
        assert!(asks.iter().all(|ask| ask.body.get("stream_options").is_none()));
    }
}
