//! `cargo xtask clients`: stock clients, coding agents, a schema tester, llama.cpp's server tests, and what
//! stands before replicas, against the server, each in a scratch environment in `.cache/clients`.
//!
//! A client is a script in `xtask/clients`, which tries the same abilities as the others and tells
//! what came of each. What `docs/use-it-from.md` shows for a client runs as well.

mod agents;
mod environment;
mod proxy;
mod ray;
mod replicas;
mod router;
mod schema;
mod snippets;
mod suite;

use std::path::PathBuf;
use std::process::{Command, ExitCode, Output, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::load::server::{Contender, Kind, Server, Setup};
use crate::{models, shell, table};
use environment::Environment;

/// What clients of a whole API try, in the order of the table's columns.
const ABILITIES: &[&str] = &["chat", "stream", "tool", "schema", "embed", "cancel"];

/// The name under which the model also gives embeddings.
const EMBEDDING_MODEL: &str = "embedding";

/// A client and its script in `xtask/clients`.
struct Client {
    name: &'static str,
    environment: Environment,
    script: &'static str,
    /// What the script tries.
    abilities: &'static [&'static str],
}

const CLIENTS: &[Client] = &[
    Client {
        name: "openai",
        environment: Environment::Python(&["openai==3.54.0"]),
        script: "openai_python.py",
        abilities: ABILITIES,
    },
    Client {
        name: "anthropic",
        environment: Environment::Python(&["anthropic==2.12.0"]),
        script: "anthropic_python.py",
        abilities: ABILITIES,
    },
    Client {
        name: "langchain",
        environment: Environment::Python(&["langchain-openai==1.7.3"]),
        script: "langchain_python.py",
        abilities: ABILITIES,
    },
    Client {
        name: "instructor",
        environment: Environment::Python(&["instructor==1.17.0"]),
        script: "instructor_python.py",
        abilities: ABILITIES,
    },
    Client {
        name: "litellm",
        environment: Environment::Python(&["litellm==1.106.2", "mcp==2.3.0"]),
        script: "litellm_python.py",
        abilities: ABILITIES,
    },
    Client {
        name: "openai-node",
        environment: Environment::Node(&["openai@7.57.0"]),
        script: "openai_node.mjs",
        abilities: ABILITIES,
    },
    Client {
        name: "ollama",
        environment: Environment::Python(&["ollama==0.6.3"]),
        script: "ollama_python.py",
        abilities: ABILITIES,
    },
    Client {
        name: "ollama-node",
        environment: Environment::Node(&["ollama@0.6.4"]),
        script: "ollama_node.mjs",
        abilities: ABILITIES,
    },
    Client {
        name: "anthropic-node",
        environment: Environment::Node(&["@anthropic-ai/sdk@1.14.0"]),
        script: "anthropic_node.mjs",
        abilities: ABILITIES,
    },
    Client {
        name: "ai-sdk",
        environment: Environment::Node(&["ai@7.0.173", "@ai-sdk/openai-compatible@3.0.92"]),
        script: "ai_sdk_node.mjs",
        abilities: ABILITIES,
    },
    Client {
        name: "llama-index",
        environment: Environment::Python(&[
            "llama-index-llms-openai-like==0.8.1",
            "llama-index-embeddings-openai-like==0.4.0",
        ]),
        script: "llama_index_python.py",
        abilities: ABILITIES,
    },
    Client {
        name: "aider",
        environment: Environment::Python(&["aider-chat==0.86.2"]),
        script: "aider_python.py",
        abilities: &[snippets::ABILITY, "edit"],
    },
    Client {
        name: "continue",
        environment: Environment::Node(&["@continuedev/cli@1.5.47"]),
        script: "continue_node.mjs",
        abilities: &[snippets::ABILITY],
    },
    Client {
        name: "lm-eval",
        environment: Environment::Python(&["lm_eval[api]==0.4.13"]),
        script: "lm_eval_python.py",
        abilities: &["logprobs"],
    },
    Client {
        name: "open-webui",
        environment: Environment::PythonWithout {
            package: "open-webui==0.12.4",
            // Models that it would run itself, and the gigabytes under them.
            without: &[
                "accelerate",
                "faster-whisper",
                "opencv-python-headless",
                "rapidocr",
                "sentence-transformers",
                "transformers",
            ],
        },
        script: "open_webui.py",
        abilities: &[
            "chat",
            "stream",
            "tool",
            "schema",
            "embed",
            "cancel",
            snippets::ABILITY,
            "models",
        ],
    },
];

/// `cargo xtask clients`
#[derive(clap::Args)]
pub(crate) struct Args {
    /// An engine to use instead of building one.
    #[arg(long)]
    bin: Option<PathBuf>,
    /// A model: a file, or a name that `xtask setup` fetched.
    #[arg(long, default_value = "smollm2")]
    model: String,
    /// More arguments for `realizar serve`, in one text.
    #[arg(long, value_name = "ARGS", default_value = "", allow_hyphen_values = true)]
    args: String,
    /// Only these rows: names of clients, `codex`, `claude-code`, `opencode`, `schemathesis`, `llama-server-suite`,
    /// `vllm-router`, `litellm-proxy`, `ray-serve`.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Threads of each server; all cores by default.
    #[arg(short = 't', long)]
    threads: Option<usize>,
    /// Cases that schemathesis makes for each operation.
    #[arg(long, default_value_t = 20)]
    examples: usize,
    /// Turns that a coding agent's conversation has.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..))]
    turns: u16,
    #[command(flatten)]
    suite: suite::SuiteArgs,
}

/// What came of trying something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    Skipped,
    Failed,
}

impl Verdict {
    fn shown(self) -> &'static str {
        match self {
            Self::Passed => "ok",
            Self::Skipped => "skipped",
            Self::Failed => "FAILED",
        }
    }
}

/// One cell of the table, and why it is not `ok`.
struct Tried {
    row: &'static str,
    what: String,
    verdict: Verdict,
    note: String,
}

/// Run all rows, print the table and the reasons.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let rows = [schema::NAME, suite::NAME, router::NAME, proxy::NAME, ray::NAME];
    let agents = || agents::AGENTS.iter().map(|agent| agent.name);
    let names = || CLIENTS.iter().map(|c| c.name).chain(agents()).chain(rows);
    for only in &args.only {
        let known = names().collect::<Vec<_>>().join(", ");
        ensure!(
            names().any(|name| name == only),
            "--only: unknown name `{only}`, expected one of {known}"
        );
    }
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let engine = match &args.bin {
        Some(bin) => bin.canonicalize().with_context(|| format!("open {}", bin.display()))?,
        None => shell::build_whole_engine()?,
    };
    let mut tried = Vec::new();
    if wanted(suite::NAME) {
        println!("clients: {}", suite::NAME);
        tried.push(suite::run(&engine, &args.suite)?);
    }
    for agent in agents::AGENTS.iter().filter(|agent| wanted(agent.name)) {
        println!("clients: {}", agent.name);
        tried.push(agent.run(&engine, args.turns.into()));
    }
    // The rows above bring their own models.
    let is_done = |name: &str| name == suite::NAME || agents().any(|agent| agent == name);
    if !names().any(|name| !is_done(name) && wanted(name)) {
        return Ok(report(&tried));
    }
    let threads = match args.threads {
        Some(threads) => threads,
        None => std::thread::available_parallelism()?.get(),
    };
    let setup = Setup {
        model: models::find(&engine, &args.model)?,
        threads,
        parallel: 4,
        request_len: 2048,
        queue: Some(64),
        prefix_cache: true,
    };
    let contender = Contender {
        label: "realizar".to_owned(),
        kind: Kind::Realizar,
        program: engine,
        extra: args.args.split_whitespace().map(str::to_owned).collect(),
    };
    let mut with_embeddings = contender.clone();
    let embedding_model = format!("{EMBEDDING_MODEL}={}", setup.model.display());
    with_embeddings.extra.extend(["--embedding-model".to_owned(), embedding_model]);
    let clients: Vec<&Client> = CLIENTS.iter().filter(|client| wanted(client.name)).collect();
    if !clients.is_empty() {
        let server = with_embeddings.start(&setup)?;
        for client in clients {
            println!("clients: {}", client.name);
            tried.extend(client.run(&server)?);
        }
        server.stop()?;
    }
    if wanted(schema::NAME) {
        println!("clients: {}", schema::NAME);
        tried.push(schema::run(&contender, &setup, args.examples)?);
    }
    if wanted(router::NAME) {
        for policy in router::Policy::ALL {
            println!("clients: {}", router::NAME);
            tried.push(router::run(&contender, &setup, policy)?);
        }
    }
    if wanted(proxy::NAME) {
        println!("clients: {}", proxy::NAME);
        tried.push(proxy::run(&contender, &setup)?);
    }
    if wanted(ray::NAME) {
        println!("clients: {}", ray::NAME);
        tried.push(ray::run(&contender, &setup)?);
    }
    Ok(report(&tried))
}

/// Prints the table and the reasons.
fn report(tried: &[Tried]) -> ExitCode {
    println!("\n{}", render(tried));
    for Tried { row, what, verdict, note } in tried {
        if !note.is_empty() {
            println!("{row}, {what}: {}: {note}", verdict.shown());
        }
    }
    let failed = tried.iter().any(|t| t.verdict == Verdict::Failed);
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

impl Client {
    /// Installs the client, runs its script and reads what it tells.
    fn run(&self, server: &Server) -> Result<Vec<Tried>> {
        let mut command = self.environment.script(self.name, self.script)?;
        command.args([server.client.url(), &server.client.model, EMBEDDING_MODEL]);
        let snippet = snippets::write(self, server)?;
        let script_runs_it = self.abilities.contains(&snippets::ABILITY);
        if script_runs_it {
            command.args(&snippet);
        }
        let out = output(command)?;
        let stderr = String::from_utf8_lossy(&out.stderr);
        let stdout = String::from_utf8_lossy(&out.stdout);
        let mut tried = read((self.name, self.abilities), &stdout, &stderr);
        if tried.iter().any(|t| t.verdict == Verdict::Failed) {
            println!("{}", stderr.trim_end());
        }
        if let Some(snippet) = snippet.filter(|_| !script_runs_it) {
            tried.push(snippets::run(self, &snippet)?);
        }
        Ok(tried)
    }
}

/// Runs a command without input.
fn output(mut command: Command) -> Result<Output> {
    let out = command.stdin(Stdio::null()).output();
    out.with_context(|| format!("start {}", shell::show(&command)))
}

/// What a script printed: a line of JSON per ability. One that it does not tell of has failed.
fn read(
    (row, abilities): (&'static str, &[&'static str]),
    stdout: &str,
    stderr: &str,
) -> Vec<Tried> {
    let lines: Vec<Value> =
        stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let last = stderr.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("no message");
    let one = |&ability: &&str| {
        let line = lines.iter().find(|line| line["ability"] == ability);
        let (verdict, note) = match line {
            None => (Verdict::Failed, format!("the script did not report it: {last}")),
            Some(line) => {
                let verdict = match line["result"].as_str() {
                    Some("ok") => Verdict::Passed,
                    Some("skipped") => Verdict::Skipped,
                    _ => Verdict::Failed,
                };
                (verdict, line["note"].as_str().unwrap_or_default().to_owned())
            }
        };
        Tried { row, what: ability.to_owned(), verdict, note }
    };
    abilities.iter().map(one).collect()
}

/// Clients and their abilities, then the rows that are one check each.
fn render(tried: &[Tried]) -> String {
    let mut header = vec!["client"];
    header.extend(ABILITIES);
    header.push("other");
    let mut rows: Vec<Vec<String>> = Vec::new();
    for Tried { row, what, verdict, .. } in tried {
        if rows.last().is_none_or(|last| last[0] != *row) {
            let mut cells = vec![String::new(); header.len()];
            cells[0] = (*row).to_owned();
            rows.push(cells);
        }
        let column = ABILITIES.iter().position(|ability| ability == what);
        let column = column.map_or(header.len() - 1, |idx| idx + 1);
        if let Some(cells) = rows.last_mut() {
            let cell = &mut cells[column];
            match column {
                n if n == header.len() - 1 => {
                    let comma = if cell.is_empty() { "" } else { ", " };
                    *cell += &format!("{comma}{what}: {}", verdict.shown());
                }
                _ => *cell = verdict.shown().to_owned(),
            }
        }
    }
    table::render(&header, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_read_and_shown() {
        let stdout = "noise\n\
            {\"ability\": \"chat\", \"result\": \"ok\", \"note\": \"\"}\n\
            {\"ability\": \"embed\", \"result\": \"skipped\", \"note\": \"no vectors\"}\n\
            {\"ability\": \"tool\", \"result\": \"failed\", \"note\": \"why\"}\n";
        let mut tried = read(("x", ABILITIES), stdout, "Traceback\nlast line\n\n");
        let verdicts: Vec<Verdict> = tried.iter().map(|t| t.verdict).collect();
        use Verdict::{Failed, Passed, Skipped};
        assert_eq!(verdicts, [Passed, Failed, Failed, Failed, Skipped, Failed]);
        assert_eq!(tried[1].note, "the script did not report it: last line");
        assert_eq!((&*tried[2].note, &*tried[4].note), ("why", "no vectors"));
        let (what, note) = ("answers".to_owned(), String::new());
        tried.push(Tried { row: "y", what, verdict: Passed, note });
        let (what, note) = ("document".to_owned(), String::new());
        tried.push(Tried { row: "y", what, verdict: Failed, note });
        let table = render(&tried);
        let rows: Vec<Vec<&str>> = table
            .lines()
            .skip(2)
            .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
            .collect();
        assert_eq!(rows[0], ["x", "ok", "FAILED", "FAILED", "FAILED", "skipped", "FAILED", ""]);
        assert_eq!(rows[1], ["y", "", "", "", "", "", "", "answers: ok, document: FAILED"]);
    }

    #[test]
    fn every_script_is_there_and_every_version_is_fixed() {
        for client in CLIENTS {
            let script = shell::root().join("xtask/clients").join(client.script);
            let text = std::fs::read_to_string(&script).unwrap();
            for ability in client.abilities {
                assert!(text.contains(&format!("{ability}(")), "{}: {ability}", client.script);
            }
            let packages = client.environment.packages();
            let sign = if matches!(client.environment, Environment::Node(_)) { "@" } else { "==" };
            assert!(packages.iter().all(|p| p.contains(sign)), "{packages:?}");
        }
    }
}
