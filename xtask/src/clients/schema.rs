//! Schemathesis: requests made from the server's OpenAPI document, valid and invalid ones. Answers
//! must be as the document says and no errors of the server, and what is invalid must be refused.

use std::process::Stdio;

use anyhow::{Context, Result};

use super::environment::{Environment, direct};
use super::{Tried, Verdict};
use crate::install::program;
use crate::load::server::{Contender, Setup};
use crate::shell;

/// The row's name.
pub(super) const NAME: &str = "schemathesis";

const ENVIRONMENT: Environment = Environment::Python(&["schemathesis==4.32.5"]);

/// What is looked at. That valid requests are answered as asked is not: what a request may ask for
/// depends on the model, which the document does not know.
const CHECKS: &[&str] = &[
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
];

/// The maximum number of tokens of an answer, so that thousands of them do not take long.
const MAX_OUTPUT: usize = 8;
const REQUEST_LEN: usize = 512;

/// Tries `examples` requests for each operation, beside those that go to the edges of the schemas.
pub(super) fn run(contender: &Contender, setup: &Setup, examples: usize) -> Result<Tried> {
    let folder = ENVIRONMENT.install(NAME)?;
    let mut contender = Contender { label: NAME.to_owned(), ..contender.clone() };
    let embedder = format!("vectors={}", setup.model.display());
    let more = ["--max-output", &MAX_OUTPUT.to_string(), "--embedding-model", &embedder];
    contender.extra.extend(more.map(str::to_owned));
    let server = contender.start(&Setup { request_len: REQUEST_LEN, ..setup.clone() })?;
    let mut command = shell::command(program(&folder, "schemathesis"));
    // It keeps a database of examples in its working folder.
    command.current_dir(&folder);
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("REALIZAR_MODEL", &server.client.model);
    let hooks = shell::root().join("xtask/clients");
    command.env("PYTHONPATH", &hooks).env("SCHEMATHESIS_HOOKS", "schemathesis_hooks");
    command.arg("--config-file").arg(hooks.join("schemathesis.toml"));
    command.arg("run").arg(format!("{}/openapi.json", server.client.url()));
    command.args(["--phases", "examples,coverage,fuzzing", "--mode", "all"]);
    command.args(["--seed", "1", "--no-color", "--request-timeout", "300"]);
    command.args(["--checks", &CHECKS.join(",")]);
    command.args(["--max-examples", &examples.to_string()]);
    direct(&mut command);
    let out = command.stdin(Stdio::null()).output();
    let out = out.with_context(|| format!("start {}", shell::show(&command)))?;
    server.stop()?;
    let text = [out.stdout, out.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let (verdict, note) = if out.status.success() {
        let cases = text.lines().find(|line| line.contains(" generated,"));
        (Verdict::Passed, cases.unwrap_or_default().trim().to_owned())
    } else {
        println!("{}", text.trim_end());
        let last = text.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("no message");
        (Verdict::Failed, last.trim_matches(['=', ' ']).to_owned())
    };
    Ok(Tried { row: NAME, what: "OpenAPI document".to_owned(), verdict, note })
}
