//! The tools of a conversation on a terminal: what the model wishes to call is shown, and runs when the
//! user says so.

use std::collections::HashSet;
use std::path::Path;

use anyhow::{Context, Result, bail};
use realizar_server::tools::Function;
use serde_json::{Map, Value};
use tokio::runtime::Runtime;

use super::input::Input;
use crate::interrupt;
use crate::mcp::{self, Output, Servers};
use crate::ui;

/// Lines of a result that are shown.
const SHOWN_LINES: usize = 8;
/// The result that the model gets for a call that the user declines.
const DECLINED: &str = "The user declined this call.";
/// The result that it gets for one that Ctrl-C stopped.
pub(super) const STOPPED: &str = "The user stopped this call.";

/// A call that the model asks for.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) id: String,
    pub(super) name: String,
    /// JSON, as the model wrote it.
    pub(super) arguments: String,
}

/// The tools, none without a file of servers.
#[derive(Default)]
pub(super) struct Tools {
    running: Option<Running>,
    functions: Vec<Function>,
    values: Vec<Value>, // the functions as templates read them
    always: HashSet<String>,
}

struct Running {
    servers: Servers,
    runtime: Runtime,
}

impl Tools {
    /// Starts the servers of a file, if there is one.
    pub(super) fn start(file: Option<&Path>, input: &Input) -> Result<Self> {
        let Some(file) = file else { return Ok(Self::default()) };
        if !input.is_terminal() {
            return Err(ui::usage(
                "--mcp asks before each call, which needs a terminal".to_owned(),
            ));
        }
        let configs = mcp::read(file)?;
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().context("cannot start")?;
        let n_servers = configs.len();
        let (servers, failed) = runtime.block_on(Servers::start(configs));
        for failure in &failed {
            ui::note(&format!("note: {failure}"));
        }
        if failed.len() == n_servers {
            bail!("none of the MCP servers in {} could be started", file.display());
        }
        let functions: Vec<_> = servers.tools().iter().map(|tool| tool.function.clone()).collect();
        let values = functions.iter().map(Function::to_chat).collect();
        let running = Some(Running { servers, runtime });
        Ok(Self { running, functions, values, always: HashSet::new() })
    }

    pub(super) fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// The functions as templates read them.
    pub(super) fn values(&self) -> &[Value] {
        &self.values
    }

    /// Prints the tools.
    pub(super) fn list(&self) {
        let tools = self.running.as_ref().map_or(&[][..], |running| running.servers.tools());
        if tools.is_empty() {
            return ui::note("no tools; --mcp FILE names MCP servers");
        }
        for tool in tools {
            let about = tool.function.description.as_deref().unwrap_or_default();
            let about = about.lines().next().unwrap_or_default();
            ui::note(&format!("{} ({})  {about}", tool.function.name, tool.server));
        }
    }

    /// Runs a call, if the user lets it, and returns what the model is told; `None` if Ctrl-C ends the
    /// turn, at the question or while the call runs.
    pub(super) fn run(&mut self, call: &Call, input: &mut Input) -> Result<Option<String>> {
        let tool = self.running.as_ref().and_then(|own| Some((own, own.servers.tool(&call.name)?)));
        let Some((running, tool)) = tool else {
            return Ok(Some(format!("There is no tool `{}`.", call.name)));
        };
        let arguments = match arguments(&call.arguments) {
            Ok(arguments) => arguments,
            Err(error) => return Ok(Some(format!("The arguments are not a JSON object: {error}"))),
        };
        let shown = Value::from(arguments.clone());
        ui::reset_note(&format!("{} wants to call {} {shown}", tool.server, call.name));
        if !self.always.contains(&call.name) {
            let question = "run it? [y]es, [n]o, [a]lways this tool: ";
            let Some(line) = input.ask(question)? else { return Ok(None) };
            match answer_of(&line) {
                Consent::Once => {}
                Consent::Always => {
                    self.always.insert(call.name.clone());
                }
                Consent::No => return Ok(Some(DECLINED.to_owned())),
            }
        }
        let guard = interrupt::Guard::new();
        let result = running.runtime.block_on(async {
            tokio::select! {
                result = running.servers.call(tool, arguments) => Some(result),
                () = guard.wait() => None,
            }
        });
        drop(guard);
        let Output { text, is_error } = match result {
            None => return Ok(None),
            Some(Ok(output)) => output,
            Some(Err(error)) => Output { text: ui::one_line(&error), is_error: true },
        };
        for line in text.lines().take(SHOWN_LINES) {
            ui::dim(line);
        }
        match text.lines().count() {
            n if n > SHOWN_LINES => ui::dim(&format!("… {} more lines", n - SHOWN_LINES)),
            _ => {}
        }
        Ok(Some(if is_error { format!("Error: {text}") } else { text }))
    }
}

impl Drop for Tools {
    fn drop(&mut self) {
        if let Some(Running { servers, runtime }) = self.running.take() {
            // Its processes are asked to end; nothing waits for a server that does not.
            let guard = runtime.enter();
            drop(servers);
            drop(guard);
            runtime.shutdown_background();
        }
    }
}

/// The arguments of a call; none is an empty object.
fn arguments(text: &str) -> Result<Map<String, Value>, serde_json::Error> {
    if text.trim().is_empty() { Ok(Map::new()) } else { serde_json::from_str(text) }
}

/// Whether a call may run.
#[derive(Debug, PartialEq)]
enum Consent {
    Once,
    Always,
    No,
}

/// Anything but a clear yes is a no.
fn answer_of(line: &str) -> Consent {
    match line.trim().to_lowercase().as_str() {
        "y" | "yes" => Consent::Once,
        "a" | "always" => Consent::Always,
        _ => Consent::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_yes_lets_a_call_run() {
        for (line, want) in [
            ("y", Consent::Once),
            (" Yes ", Consent::Once),
            ("a", Consent::Always),
            ("", Consent::No),
            ("yy", Consent::No),
            ("n", Consent::No),
        ] {
            assert_eq!(answer_of(line), want, "{line:?}");
        }
    }

    #[test]
    fn arguments_are_an_object() {
        assert_eq!(arguments(" ").expect("none").len(), 0);
        assert_eq!(arguments(r#"{"a": 1}"#).expect("one")["a"], 1);
        assert!(arguments("[1]").is_err());
    }
}
