//! The chat page in a headless Chromium, on a model with a small context: answers, and a new chat in
//! the middle of one.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result};
use serde_json::Value;

use super::install::Environment;
use super::{Tried, Verdict};
use crate::load::server::{Contender, Setup};
use crate::shell;

/// The row's name.
pub(super) const NAME: &str = "page";

const ENVIRONMENT: Environment = Environment::Node(&["playwright-core@1.65.1"]);
const SCRIPT: &str = "page.mjs";
/// Programs that are a Chromium, the first one on `PATH` is used.
const BROWSERS: &[&str] = &["chromium", "chromium-browser", "google-chrome"];
/// The context of each request, in tokens.
const CONTEXT: usize = 512;

/// Drives the page, unless there is no browser.
pub(super) fn run(contender: &Contender, setup: &Setup) -> Result<Tried> {
    let row = |verdict, note| Tried { row: NAME, what: "chats".to_owned(), verdict, note };
    let Some(browser) = browser() else {
        let note = format!("none of {} is on PATH", BROWSERS.join(", "));
        return Ok(row(Verdict::Skipped, note));
    };
    let server = contender.start(&Setup { request_len: CONTEXT, ..setup.clone() })?;
    let mut command = ENVIRONMENT.script(NAME, SCRIPT)?;
    command.arg(server.client.url()).arg(browser).stdin(Stdio::null());
    let out = command.output().with_context(|| format!("start {}", shell::show(&command)))?;
    server.stop()?;
    let stdout = String::from_utf8_lossy(&out.stdout);
    let told: Option<Value> = stdout.lines().find_map(|line| serde_json::from_str(line).ok());
    Ok(match told {
        Some(told) => {
            let note = told["note"].as_str().unwrap_or_default().to_owned();
            let is_ok = told["result"] == "ok";
            row(if is_ok { Verdict::Passed } else { Verdict::Failed }, note)
        }
        None => {
            let stderr = String::from_utf8_lossy(&out.stderr);
            let last = stderr.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("no message");
            row(Verdict::Failed, format!("the script told nothing: {last}"))
        }
    })
}

/// The first browser on `PATH`.
fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let places = BROWSERS.iter().flat_map(|name| folders.iter().map(move |dir| dir.join(name)));
    places.into_iter().find(|place| place.is_file())
}
