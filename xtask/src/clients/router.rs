//! vllm-router in front of two replicas: requests with common prefixes come in and go to where their
//! prefixes are, one replica is killed, and no client sees a failure.

use anyhow::{Result, ensure};
use realizar_kvcache::PAGE_LEN;

use super::Tried;
use super::environment::{Environment, direct};
use super::replicas::{Allowed, Front, REQUESTS, asks, failed_streams, tried, under_load};
use crate::install::program;
use crate::load::metrics;
use crate::load::server::{Contender, Server, Setup, free_port};
use crate::load::workload::Api;
use crate::shell;

/// The row's name.
pub(super) const NAME: &str = "vllm-router";

const ENVIRONMENT: Environment = Environment::Python(&["vllm-router==0.1.17"]);

/// How many requests must fail until the router leaves a replica out. It tries a request five times, and by its
/// prefix each time at the same replica, which it would leave out after ten failures.
const FAILURES: &str = "3";

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
    Ok(tried(policy.row(), routed(contender, setup, policy)))
}

/// A replica, and where it publishes the changes of its prefix cache if the router is to know them.
fn replica(
    name: &str,
    contender: &Contender,
    setup: &Setup,
    policy: Policy,
) -> Result<(Server, String)> {
    let endpoint = format!("tcp://127.0.0.1:{}", free_port()?);
    let mut contender = Contender { label: name.to_owned(), ..contender.clone() };
    if matches!(policy, Policy::KvAware) {
        contender.extra.extend(["--kv-events".to_owned(), endpoint.clone()]);
    }
    Ok((contender.start(setup)?, endpoint))
}

fn routed(contender: &Contender, setup: &Setup, policy: Policy) -> Result<String> {
    let folder = ENVIRONMENT.install(NAME)?;
    let (first, events) = replica("replica-1", contender, setup, policy)?;
    let (second, other_events) = replica("replica-2", contender, setup, policy)?;
    let (port, prometheus) = (free_port()?, free_port()?);
    let mut command = shell::command(program(&folder, "vllm-router"));
    command.current_dir(&folder);
    command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
    command.args(["--prometheus-port", &prometheus.to_string(), "--policy", policy.name()]);
    command.args(["--cb-failure-threshold", FAILURES]);
    command.args(["--worker-urls", first.client.url(), second.client.url()]);
    if matches!(policy, Policy::KvAware) {
        for (server, events) in [(&first, events), (&second, other_events)] {
            command.args(["--kv-event-source", &format!("{}={events}", server.client.url())]);
        }
        command.args(["--kv-event-model", &first.client.model]);
        command.args(["--kv-event-block-size", &PAGE_LEN.to_string()]);
    }
    direct(&mut command);
    let front = Front::start(command, &folder.join("router.log"), port, &first.client.model)?;

    // Both replicas get their share before one is gone.
    let (failures, shares) = under_load(&front.client, &asks(Api::Completions, |_| false), || {
        let shares = [&first, &second].map(|server| metrics::finished(&server.client));
        drop(second);
        shares
    });
    let [one, other] = shares;
    let (one, other) = (one?, other?);
    let found = metrics::prefixes(&first.client)?.share();
    drop(front);
    first.stop()?;
    // Nothing is streamed, so that no failure is one of a stream.
    failed_streams(&failures, Allowed::Begun)?;
    ensure!(one > 0.0 && other > 0.0, "one replica got no request: {one} and {other} answers");
    Ok(format!(
        "{REQUESTS} answers; replicas had given {one} and {other} before the kill; the other had \
         {:.0} % of its prompts' tokens in the cache",
        100.0 * found
    ))
}
