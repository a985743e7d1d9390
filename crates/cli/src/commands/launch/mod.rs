//! `realizar launch`: starts a coding agent that uses a model of this machine.
//!
//! The agent's configuration lies in a folder of its own in the cache (`agents.rs`), so that no file of the
//! user's changes. A server that runs is used, or one is started for as long as the agent runs (`server.rs`).

mod agents;
mod server;

use std::ffi::OsString;
use std::process::{ExitCode, ExitStatus};

use anyhow::{Context, Result, anyhow};

use crate::interrupt;
use crate::options::{GlobalArgs, port};
use crate::program::Program;
use crate::source::cache::create_dir;
use crate::ui;
use agents::{Agent, Setup};
use server::Found;

/// A server at --port that has the model is used; otherwise one is started, which ends with the agent.
/// Its options come from the config file.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Agent: codex, claude or opencode
    #[arg(value_enum, hide_possible_values = true)]
    agent: Agent,
    /// Model: as for `realizar serve`, or the name of a running server's model [default: the
    /// server's first]
    model: Option<String>,
    /// Port of the server [default: a server at 8080, or a free port for a new one]
    #[arg(long, value_name = "PORT", value_parser = port)]
    port: Option<u16>,
    /// Key of the server
    #[arg(long, value_name = "KEY", env = "REALIZAR_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Arguments of the agent
    #[arg(last = true, value_name = "ARGS")]
    args: Vec<OsString>,
}

pub(crate) fn execute(args: &Args, global: &GlobalArgs) -> Result<ExitCode> {
    let facts = args.agent.facts();
    let program = Program::find_script(facts.program).ok_or_else(|| {
        let (program, package) = (facts.program, facts.package);
        anyhow!("{program} is not on PATH; `npm install -g {package}` installs it")
    })?;
    let root = global.sources().cache()?.launch_dir();
    let folder = root.join(facts.program);
    create_dir(&folder)?;
    let found = Found::new(args, global, &root)?;
    let model = found.model(args.model.as_deref())?;
    if let Some(context) = model.context.filter(|&n| n < facts.first_prompt) {
        ui::note(&format!(
            "{} has a context of {context} tokens, and the first request of {} takes about {}",
            model.name, facts.program, facts.first_prompt
        ));
    }
    let (url, key) = (found.url.clone(), args.api_key.clone());
    let setup = Setup { folder, url, key, model };
    let variables = args.agent.configure(&setup)?;
    let mut command = program.as_user();
    for (name, value) in variables {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    // The agent has the terminal: an interrupt is for it.
    let _guard = interrupt::Guard::new();
    let status = command.args(&args.args).status();
    let status = status.with_context(|| format!("cannot start {}", program.path().display()))?;
    Ok(exit_code(status))
}

/// The agent's exit code is that of the command.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    ExitCode::from(code.unwrap_or(1))
}
