//! Ray Serve with two replicas, each of which owns a server: one server is killed under load. Requests that
//! are not streamed and streams that have not begun go to the other replica; streams that have begun there break
//! off. Ray starts another replica.

use std::ops::ControlFlow;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Tried;
use super::environment::{Environment, direct};
use super::replicas::{
    Allowed, Front, REQUEST_LIMIT, REQUESTS, asks, failed_streams, signal, tried, under_load,
};
use crate::install::program;
use crate::load::client::{Client, Failure};
use crate::load::metrics::{self, Gauges};
use crate::load::server::{Contender, Setup, free_port};
use crate::load::workload::{Api, Ask};
use crate::shell;

/// The row's name.
pub(super) const NAME: &str = "ray-serve";

const ENVIRONMENT: Environment = Environment::Python(&["ray[serve]==2.60.0"]);
const SCRIPT: &str = "deploy/ray/replicas.py";
const REPLICAS: usize = 2;
/// How long Ray may take to start a replica in place of one that ended.
const REPLACE_LIMIT: Duration = Duration::from_secs(120);

/// Starts, kills, and tells how the clients fared.
pub(super) fn run(contender: &Contender, setup: &Setup) -> Result<Tried> {
    Ok(tried(NAME, served(contender, setup)))
}

fn served(contender: &Contender, setup: &Setup) -> Result<String> {
    let folder = ENVIRONMENT.install(NAME)?;
    let port = free_port()?;
    let mut command = shell::command(program(&folder, "python"));
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("RAY_USAGE_STATS_ENABLED", "0");
    // A cluster of its own, on however few cores.
    command.env_remove("RAY_ADDRESS").arg(shell::root().join(SCRIPT));
    command.args(["--replicas", &REPLICAS.to_string(), "--port", &port.to_string()]);
    command.args(["--cpus", "0.1", "--program"]).arg(&contender.program).arg("--");
    let line = contender.command(setup, 0).context("no server to start")?;
    // The script adds `--host` and `--port` with their values itself.
    let args: Vec<_> = line.get_args().skip(1).collect();
    let at = args.iter().position(|arg| *arg == "--host").context("no --host")?;
    command.args(&args[..at]).args(&args[at + 4..]);
    direct(&mut command);
    let model = model_name(&setup.model)?;
    let front = Front::start(command, &folder.join("ray.log"), port, &model)?;
    let servers = servers(&front, &contender.program, Instant::now())?;

    let asks = asks(Api::Completions, |idx| idx % 2 == 1);
    let (failures, shares) = under_load(&front.client, &asks, || -> Result<_> {
        let mut shares = Vec::new();
        for (_, client) in &servers {
            shares.push(metrics::finished(client)?);
        }
        signal("KILL", servers[0].0)?;
        Ok((shares, Instant::now()))
    });
    let (shares, killed) = shares?;
    let broken = failed_streams(&failures, Allowed::Begun)?;
    ensure!(shares.iter().all(|&n| n > 0.0), "one replica got no request: {shares:?} answers");

    // There are as many as before, and the new one is not the old one.
    let replaced = self::servers(&front, &contender.program, killed)?;
    let took = killed.elapsed();
    ensure!(replaced.iter().all(|(id, _)| *id != servers[0].0), "the killed server still runs");
    leave(&front.client, &replaced)?;
    front.stop()?;
    let ids = replaced.iter().map(|(id, _)| id);
    let left: Vec<&u32> = ids.filter(|id| Path::new(&format!("/proc/{id}")).exists()).collect();
    ensure!(left.is_empty(), "servers still run after Ray: {left:?}");
    Ok(format!(
        "{} of {REQUESTS} answers, half of them streams; streams that had begun on the killed replica broke \
         off: {broken}; replicas had given {} and {} before the kill; another was there after {:.1} s",
        REQUESTS - broken,
        shares[0],
        shares[1],
        took.as_secs_f64()
    ))
}

/// The name that the server gives to a model that is a file.
fn model_name(file: &Path) -> Result<String> {
    let name = file.file_stem().and_then(|stem| stem.to_str());
    Ok(name.with_context(|| format!("no name in {}", file.display()))?.to_owned())
}

/// Waits until as many servers as there are replicas answer: their processes and clients that ask them
/// alone.
fn servers(front: &Front, engine: &Path, since: Instant) -> Result<Vec<(u32, Client)>> {
    loop {
        let found = front.descendants(engine)?;
        let clients: Vec<(u32, Client)> =
            found.iter().filter_map(|&id| Some((id, own_client(id).ok()?))).collect();
        if clients.len() == REPLICAS && found.len() == REPLICAS {
            return Ok(clients);
        }
        ensure!(since.elapsed() < REPLACE_LIMIT, "{} of {REPLICAS} replicas answer", clients.len());
        thread::sleep(Duration::from_millis(100));
    }
}

/// A client of the server that is a process, by the port in its arguments.
fn own_client(id: u32) -> Result<Client> {
    let line = std::fs::read(format!("/proc/{id}/cmdline"))?;
    let port = port_of(&String::from_utf8_lossy(&line)).context("no --port")?;
    Client::new(&format!("http://127.0.0.1:{port}"), REQUEST_LIMIT)
}

/// The value of `--port` among arguments that each end in a zero byte.
fn port_of(line: &str) -> Option<u16> {
    let mut words = line.split('\0').skip_while(|word| *word != "--port");
    words.nth(1)?.parse().ok()
}

/// A client that leaves in the middle of a stream: no replica continues with it.
fn leave(client: &Client, servers: &[(u32, Client)]) -> Result<()> {
    let long = Ask::greedy(Api::Completions, "", "Count: 1, 2, 3,", 1500);
    let left = client.ask_while(&long, |_| ControlFlow::Break(()));
    ensure!(matches!(left, Err(Failure::Left)), "the stream was not left: {left:?}");
    for (_, server) in servers {
        Gauges::wait_idle(server).context("after its client left")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_names_are_read() {
        assert_eq!(port_of("realizar\0serve\0--port\08123\0-t\0two\0"), Some(8123));
        assert_eq!(port_of("realizar\0serve\0"), None);
        assert_eq!(model_name(Path::new("/m/a.b.gguf")).unwrap(), "a.b");
        assert!(shell::root().join(SCRIPT).is_file());
    }
}
