//! Schemathesis: requests made from the server's OpenAPI document, whose answers must be as the
//! document says and no errors of the server.

use std::process::Stdio;

use anyhow::{Context, Result};

use super::install::{Environment, direct, program};
use super::{Tried, Verdict};
use crate::load::server::Server;
use crate::shell;

/// The row's name.
pub(super) const NAME: &str = "schemathesis";

const ENVIRONMENT: Environment = Environment::Python(&["schemathesis==4.32.5"]);

/// Tries `examples` requests for each operation.
pub(super) fn run(server: &Server, examples: usize) -> Result<Tried> {
    let folder = ENVIRONMENT.install(NAME)?;
    let mut command = shell::command(program(&folder, "schemathesis"));
    // It keeps a database of examples in its working folder.
    command.current_dir(&folder);
    command.arg("run").arg(format!("{}/openapi.json", server.client.url()));
    command.args(["--mode", "positive", "--seed", "1", "--no-color", "--request-timeout", "300"]);
    command.args(["--checks", "response_schema_conformance,not_a_server_error"]);
    command.args(["--max-examples", &examples.to_string()]);
    direct(&mut command);
    let out = command.stdin(Stdio::null()).output();
    let out = out.with_context(|| format!("start {}", shell::show(&command)))?;
    let text = [out.stdout, out.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let (verdict, note) = if out.status.success() {
        (Verdict::Passed, String::new())
    } else {
        println!("{}", text.trim_end());
        let last = text.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("no message");
        (Verdict::Failed, last.trim_matches(['=', ' ']).to_owned())
    };
    Ok(Tried { row: NAME, what: "OpenAPI document".to_owned(), verdict, note })
}
