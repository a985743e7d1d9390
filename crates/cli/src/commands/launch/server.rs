//! The server of an agent: one that runs and has the model, or one that is started and ends with this program.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use super::Args;
use crate::commands::ps;
use crate::options::GlobalArgs;
use crate::program;
use crate::ui;

/// The port at which a server is looked for.
const USUAL_PORT: u16 = 8080;
/// The beginning of the server's first line.
const LISTENS: &str = "listening on ";
/// How long a server may take to end before it is killed.
const GRACE: Duration = Duration::from_secs(5);
/// Bytes at the end of the server's log that may say why it did not start.
const LOG_END: usize = 2000;

/// A model of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServedName {
    pub(super) name: String,
    /// Known once it is loaded.
    pub(super) context: Option<u64>,
}

/// A server that runs, and its models.
pub(super) struct Found {
    pub(super) url: String,
    models: Vec<Value>,
    /// That it ends with this value, if it was started.
    _started: Option<Started>,
}

impl Found {
    /// The server at the port, or a new one.
    pub(super) fn new(args: &Args, global: &GlobalArgs, folder: &Path) -> Result<Self> {
        let port = args.port.unwrap_or(USUAL_PORT);
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
            let url = format!("http://127.0.0.1:{port}");
            let found = Self::at(&url, args, None);
            let has_model =
                found.as_ref().is_ok_and(|found| found.find(args.model.as_deref()).is_some());
            match found {
                Ok(found) if has_model || args.port.is_some() => return Ok(found),
                Err(error) if args.port.is_some() => return Err(error),
                Ok(_) => {
                    ui::note(&format!("the server at {url} lacks the model; starting another one"));
                }
                Err(error) => ui::note(&format!(
                    "the server at {url} cannot be used ({}); starting another one",
                    ui::one_line(&error)
                )),
            }
        }
        let started = Started::new(args, global, folder)?;
        Self::at(&started.url.clone(), args, Some(started))
    }

    fn at(url: &str, args: &Args, started: Option<Started>) -> Result<Self> {
        let list = ps::models_of(url, args.api_key.as_deref())?;
        let models = list["data"].as_array().cloned();
        let models =
            models.with_context(|| format!("{url}: the response has no list of models"))?;
        Ok(Self { url: url.to_owned(), models, _started: started })
    }

    /// The model of a name or alias, or the first one for text.
    fn find(&self, name: Option<&str>) -> Option<&Value> {
        let is_text = |model: &&Value| {
            model["capabilities"]
                .as_array()
                .is_none_or(|list| list.iter().any(|c| c == "completion"))
        };
        let is_named = |model: &Value, name: &str| {
            model["id"] == name
                || model["aliases"].as_array().is_some_and(|list| list.iter().any(|a| a == name))
        };
        match name {
            None => self.models.iter().find(is_text),
            Some(name) => self.models.iter().filter(is_text).find(|model| is_named(model, name)),
        }
    }

    /// The model that the agent is to use. A server that was started for one has it first.
    pub(super) fn model(&self, name: Option<&str>) -> Result<ServedName> {
        let name = name.filter(|_| self._started.is_none());
        let model = self.find(name).ok_or_else(|| match name {
            Some(name) => {
                let names = self.models.iter().filter_map(|model| model["id"].as_str());
                let names = names.collect::<Vec<_>>().join(", ");
                anyhow!("the server at {} does not have {name}; it has {names}", self.url)
            }
            None => anyhow!(
                "no model has been pulled: name one, or `realizar pull` one first (`realizar list \
                 --available` shows names)"
            ),
        })?;
        let id = model["id"].as_str().context("a model of the server has no name")?;
        Ok(ServedName { name: id.to_owned(), context: model["max_model_len"].as_u64() })
    }
}

/// A server that this program has started.
struct Started {
    child: Child,
    url: String,
    /// Nobody reads on, but a closed pipe would be an error for the server.
    _out: BufReader<ChildStdout>,
}

impl Started {
    fn new(args: &Args, global: &GlobalArgs, folder: &Path) -> Result<Self> {
        let log = folder.join("serve.log");
        let errors =
            File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = program::own().context("cannot find this program")?.as_user();
        command.arg("serve").args(&args.model).arg("--until-stdin-ends");
        command.args(["--host", "127.0.0.1", "--port", &args.port.unwrap_or(0).to_string()]);
        if let Some(dir) = &global.cache_dir {
            command.arg("--cache-dir").arg(dir);
        }
        if let Some(file) = &global.config {
            command.arg("--config").arg(file);
        }
        for (flag, is_set) in [("--offline", global.offline), ("--no-config", global.no_config)] {
            command.args(is_set.then_some(flag));
        }
        if let Some(key) = &args.api_key {
            command.env("REALIZAR_API_KEY", key);
        }
        on_its_own(&mut command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        ui::note(&format!("starting a server, which logs to {}", log.display()));
        let mut child = command.spawn().context("cannot start the server")?;
        let out = child.stdout.take().context("the server has no standard output")?;
        let mut started = Self { child, url: String::new(), _out: BufReader::new(out) };
        let mut line = String::new();
        started._out.read_line(&mut line).context("cannot read the server's address")?;
        match line.trim().strip_prefix(LISTENS) {
            Some(url) => started.url = url.to_owned(),
            None => bail!("the server did not start: {}", end_of(&log)),
        }
        Ok(started)
    }
}

/// Interrupts from the terminal are for the agent.
fn on_its_own(command: &mut std::process::Command) {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    #[cfg(not(unix))]
    let _ = command;
}

/// The last line of a log, which says why a program ended.
fn end_of(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(LOG_END)..]).into_owned();
    let line = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    let line = line.strip_prefix("error: ").unwrap_or(line);
    match line {
        "" => format!("it wrote nothing to {}", log.display()),
        line => line.to_owned(),
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // The server ends with its standard input.
        drop(self.child.stdin.take());
        let deadline = Instant::now() + GRACE;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // It may have ended meanwhile.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn models_are_found_by_their_names() {
        let models = json!([
            {"id": "e", "aliases": [], "capabilities": ["embedding"], "max_model_len": 512},
            {"id": "m", "aliases": ["n"], "capabilities": ["completion"], "max_model_len": 4096},
            {"id": "u", "aliases": [], "capabilities": ["completion"], "max_model_len": null},
        ]);
        let models = models.as_array().expect("a list").clone();
        let found = Found { url: "http://x".to_owned(), models, _started: None };
        for (name, want) in [
            (None, Some(("m", Some(4096)))),
            (Some("n"), Some(("m", Some(4096)))),
            (Some("u"), Some(("u", None))),
            (Some("e"), None),
            (Some("other"), None),
        ] {
            let model = found.model(name);
            let want = want.map(|(name, context)| ServedName { name: name.to_owned(), context });
            assert_eq!(model.as_ref().ok(), want.as_ref(), "{name:?}: {model:?}");
        }
        let error = found.model(Some("other")).expect_err("unknown").to_string();
        assert!(error.contains("does not have other; it has e, m, u"), "{error}");
    }
}
