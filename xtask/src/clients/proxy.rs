//! LiteLLM's proxy with the configuration that `deploy` ships, in front of two replicas, one of which is killed
//! under load. Chats that are not streamed go to the other; streams that have begun
//! there fail.

use std::fs;

use anyhow::{Context, Result, ensure};

use super::Tried;
use super::environment::{Environment, direct};
use super::replicas::{Allowed, Front, REQUESTS, asks, failed_streams, tried, under_load};
use crate::install::program;
use crate::load::metrics;
use crate::load::server::{Contender, Server, Setup, free_port};
use crate::load::workload::Api;
use crate::shell;

/// The row's name.
pub(super) const NAME: &str = "litellm-proxy";

const ENVIRONMENT: Environment = Environment::Python(&["litellm[proxy]==1.106.2"]);
const CONFIG: &str = "deploy/litellm.yaml";
/// The model and the ports that it names.
const MODEL: &str = "smollm2";
const PORTS: [&str; 2] = [":8001/", ":8002/"];

/// Starts, kills, and tells how the clients fared.
pub(super) fn run(contender: &Contender, setup: &Setup) -> Result<Tried> {
    Ok(tried(NAME, proxied(contender, setup)))
}

fn replica(name: &str, contender: &Contender, setup: &Setup) -> Result<Server> {
    let mut contender = Contender { label: name.to_owned(), ..contender.clone() };
    contender.extra.extend(["--alias".to_owned(), MODEL.to_owned()]);
    contender.start(setup)
}

fn proxied(contender: &Contender, setup: &Setup) -> Result<String> {
    let folder = ENVIRONMENT.install(NAME)?;
    let first = replica("replica-1", contender, setup)?;
    let second = replica("replica-2", contender, setup)?;
    let text = fs::read_to_string(shell::root().join(CONFIG)).context(CONFIG)?;
    let config = folder.join("litellm.yaml");
    fs::write(&config, with_ports(&text, [first.port, second.port])?)?;
    let port = free_port()?;
    let mut command = shell::command(program(&folder, "litellm"));
    command.current_dir(&folder).arg("--config").arg(&config);
    command.args(["--host", "127.0.0.1", "--port", &port.to_string(), "--telemetry", "False"]);
    // Prices of models come with the package; a proxy on this machine alone needs no key.
    command.env("LITELLM_LOCAL_MODEL_COST_MAP", "True");
    command.env("LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY", "true");
    direct(&mut command);
    let front = Front::start(command, &folder.join("proxy.log"), port, MODEL)?;
    let (failures, shares) =
        under_load(&front.client, &asks(Api::Chat, |idx| idx % 2 == 1), || {
            let shares = [&first, &second].map(|server| metrics::finished(&server.client));
            drop(second);
            shares
        });
    let [one, other] = shares;
    let (one, other) = (one?, other?);
    drop(front);
    first.stop()?;
    let broken = failed_streams(&failures, Allowed::Streams)?;
    ensure!(one > 0.0 && other > 0.0, "one replica got no request: {one} and {other} answers");
    Ok(format!(
        "{} of {REQUESTS} answers, half of them streams; streams that had begun on the killed replica \
         failed: {broken}; replicas had given {one} and {other} before the kill",
        REQUESTS - broken
    ))
}

/// The configuration with other ports.
fn with_ports(text: &str, ports: [u16; 2]) -> Result<String> {
    let mut text = text.to_owned();
    for (before, after) in PORTS.iter().zip(ports) {
        ensure!(text.matches(before).count() == 1, "{CONFIG} does not name `{before}` once");
        text = text.replace(before, &format!(":{after}/"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_gets_other_ports() {
        let text = fs::read_to_string(shell::root().join(CONFIG)).unwrap();
        let changed = with_ports(&text, [91, 92]).unwrap();
        let bases: Vec<&str> = changed.lines().filter(|line| line.contains("api_base")).collect();
        let expected = [91, 92].map(|port| format!("      api_base: http://127.0.0.1:{port}/v1"));
        assert_eq!(bases, expected);
        assert!(changed.contains(&format!("model: openai/{MODEL}\n")));
        assert!(with_ports("api_base: http://127.0.0.1:8001/v1", [91, 92]).is_err());
    }
}
