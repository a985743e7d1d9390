//! Coding agents as npm delivers them, against `realizar serve MODEL` with no option but its address.
//!
//! Each is configured as `docs/use-it-from.md` says. No small model calls tools reliably, so each agent talks to a
//! model of `fixtures/scripted`: it answers every turn of the user with a call of the agent's shell, and the call's
//! result with a sentence. A turn has passed when the command has run in the agent's folder and the agent has printed
//! the sentence. Later turns continue the conversation of the first, and the prefix cache is to have what was there
//! before.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::environment::{Environment, direct};
use super::{Tried, Verdict, snippets};
use crate::load::metrics::{self, Prefixes};
use crate::load::server::{Contender, Kind, Server, Setup};
use crate::{shell, table};

/// How long an agent may take for a turn.
const TURN_LIMIT: Duration = Duration::from_secs(300);
/// The file that the command of the scripted call appends a line to.
const CUPS: &str = "cups.txt";
/// The part of the scripted answer that is looked for.
const ANSWER: &str = "The cup is on the table.";
/// The user's words.
const PROMPT: &str = "Put a cup on the table.";

/// An agent and how it is started.
pub(super) struct Agent {
    pub(super) name: &'static str,
    packages: &'static [&'static str],
    /// The program in `node_modules/.bin`.
    program: &'static str,
    /// The script that completes the installation, which npm may leave out.
    install: Option<&'static str>,
    /// The model of `fixtures/scripted`.
    model: &'static str,
    configure: fn(&Scene<'_>, &mut Command) -> Result<()>,
    first: &'static [&'static str],
    later: &'static [&'static str],
}

/// The agents, by the names of their rows.
pub(super) const AGENTS: &[Agent] = &[
    Agent {
        name: "codex",
        packages: &["@openai/codex@0.171.0"],
        program: "codex",
        install: None,
        model: "codex",
        configure: codex,
        first: &["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"],
        later: &[
            "exec",
            "resume",
            "--last",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
        ],
    },
    Agent {
        name: "claude-code",
        packages: &["@anthropic-ai/claude-code@2.1.197"],
        program: "claude",
        install: Some("@anthropic-ai/claude-code/install.cjs"),
        model: "claude",
        configure: claude,
        first: &["--allowedTools=Bash", "--print"],
        later: &["--allowedTools=Bash", "--continue", "--print"],
    },
    Agent {
        name: "opencode",
        packages: &["opencode-ai@1.18.33"],
        program: "opencode",
        install: Some("opencode-ai/postinstall.mjs"),
        model: "opencode",
        configure: opencode,
        first: &["run"],
        later: &["run", "--continue"],
    },
];

/// The folders of one try, and what the document shows for the agent.
struct Scene<'a> {
    /// The folder for the agent's own files.
    home: &'a Path,
    /// The folder that it works in.
    work: &'a Path,
    snippet: &'a str,
}

/// Codex reads its provider from `config.toml`.
fn codex(scene: &Scene<'_>, command: &mut Command) -> Result<()> {
    let Scene { home, snippet, .. } = scene;
    // The document's lines end with the table of the provider.
    let config = format!(
        "check_for_update_on_startup = false\n{snippet}request_max_retries = 0\n\
         stream_max_retries = 0\n[analytics]\nenabled = false\n"
    );
    fs::write(home.join("config.toml"), config)?;
    command.env("CODEX_HOME", home);
    Ok(())
}

/// Claude Code is configured by its environment.
fn claude(scene: &Scene<'_>, command: &mut Command) -> Result<()> {
    command.env("CLAUDE_CONFIG_DIR", scene.home).envs(exported(scene.snippet));
    for switch in ["DISABLE_AUTOUPDATER", "DISABLE_ERROR_REPORTING", "DISABLE_TELEMETRY"] {
        command.env(switch, "1");
    }
    Ok(())
}

/// The variables that lines of a shell export, without quotes and blanks in their values.
fn exported(lines: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = lines.lines().filter_map(|line| line.strip_prefix("export "));
    lines.flat_map(str::split_whitespace).filter_map(|word| word.split_once('='))
}

/// opencode reads a provider for any server with OpenAI's API from its configuration.
fn opencode(scene: &Scene<'_>, command: &mut Command) -> Result<()> {
    let Scene { home, snippet, .. } = scene;
    let mut config: Value = serde_json::from_str(snippet)?;
    config["autoupdate"] = json!(false);
    config["share"] = json!("disabled");
    let file = home.join("opencode.json");
    fs::write(&file, config.to_string())?;
    command.env("OPENCODE_CONFIG", file).env("OPENCODE_DISABLE_MODELS_FETCH", "1");
    for (variable, folder) in [
        ("XDG_CACHE_HOME", "cache"),
        ("XDG_CONFIG_HOME", "config"),
        ("XDG_DATA_HOME", "data"),
        ("XDG_STATE_HOME", "state"),
    ] {
        command.env(variable, home.join(folder));
    }
    Ok(())
}

impl Agent {
    /// Installs the agent and has it do some turns.
    pub(super) fn run(&self, engine: &Path, turns: usize) -> Tried {
        let (row, what) = (self.name, format!("{turns} turns"));
        match self.take_turns(engine, turns) {
            Ok(note) => Tried { row, what, verdict: Verdict::Passed, note },
            Err(error) => Tried { row, what, verdict: Verdict::Failed, note: format!("{error:#}") },
        }
    }

    fn take_turns(&self, engine: &Path, turns: usize) -> Result<String> {
        let program = self.install()?;
        let scratch = tempfile::tempdir()?;
        let [home, work] = ["home", "work"].map(|name| scratch.path().join(name));
        fs::create_dir(&home)?;
        fs::create_dir(&work)?;
        shell::check(shell::command("git").args(["init", "--quiet"]).current_dir(&work))?;
        let server = self.serve(engine)?;
        let context = snippets::context(&server.client)?;
        let served = (server.client.url(), &*server.client.model, context);
        let snippet = snippets::of_agent(self.name, served)?;
        let mut rows = Vec::new();
        for turn in 1..=turns {
            let before = metrics::prefixes(&server.client)?;
            let mut command = shell::command(&program);
            let scene = Scene { home: &home, work: &work, snippet: &snippet };
            (self.configure)(&scene, &mut command)?;
            command.args(if turn == 1 { self.first } else { self.later }).arg(PROMPT);
            let said = take_turn(command, &scene).with_context(|| format!("turn {turn}"))?;
            ensure!(said.contains(ANSWER), "turn {turn} ends with `{}`", last_lines(&said));
            let cups = fs::read_to_string(work.join(CUPS)).unwrap_or_default().lines().count();
            ensure!(cups == turn, "the command has run {cups} times after {turn} turns");
            rows.push((turn, metrics::prefixes(&server.client)?.since(before)));
        }
        server.stop()?;
        println!("{}", prefix_table(&rows));
        let later = rows[1..].iter().fold(Prefixes::default(), |sum, (_, turn)| sum.and(*turn));
        Ok(format!(
            "prompts of later turns: {:.0} tokens, {:.1} % of them cached",
            later.queries,
            100.0 * later.share()
        ))
    }

    /// The program, installed if it is not there.
    fn install(&self) -> Result<PathBuf> {
        let folder = Environment::Node(self.packages).install(self.name)?;
        let modules = folder.join("node_modules");
        if let Some(script) = self.install {
            shell::output(shell::command("node").arg(modules.join(script)))?;
        }
        Ok(modules.join(".bin").join(self.program))
    }

    fn serve(&self, engine: &Path) -> Result<Server> {
        let contender = Contender {
            label: format!("realizar-{}", self.name),
            kind: Kind::RealizarDefaults,
            program: engine.to_owned(),
            extra: Vec::new(),
        };
        let file = format!("fixtures/scripted/{}.gguf", self.model);
        contender.start(&Setup::defaults(shell::root().join(file)))
    }
}

/// Runs the agent once and returns all that it printed.
fn take_turn(mut command: Command, scene: &Scene<'_>) -> Result<String> {
    direct(&mut command);
    // It is to reach the server and nothing else: a proxy on a port that nothing listens on.
    for variable in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"] {
        command.env(variable, "http://127.0.0.1:9");
    }
    let log = scene.home.join("output.log");
    let file = File::create(&log)?;
    // opencode works in the folder that the shell's variable names.
    command.current_dir(scene.work).env("PWD", scene.work).stdin(Stdio::null());
    command.stdout(file.try_clone()?).stderr(file);
    let shown = shell::show(&command);
    let mut child = command.spawn().with_context(|| format!("start {shown}"))?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > TURN_LIMIT {
            child.kill()?;
            child.wait()?;
            bail!("{shown} has not ended after {TURN_LIMIT:?}: {}", last_lines(&read(&log)?));
        }
        thread::sleep(Duration::from_millis(50));
    };
    let said = read(&log)?;
    ensure!(status.success(), "{shown} exited with {status}: {}", last_lines(&said));
    Ok(said)
}

fn read(log: &Path) -> Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(log)?).into_owned())
}

/// The last lines that say something, in one.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(3)..].join(" | ")
}

/// The prompts of each turn and the tokens of them that were cached.
fn prefix_table(turns: &[(usize, Prefixes)]) -> String {
    let row = |(turn, prefixes): &(usize, Prefixes)| {
        let share = format!("{:.1} %", 100.0 * prefixes.share());
        vec![
            turn.to_string(),
            format!("{:.0}", prefixes.queries),
            format!("{:.0}", prefixes.hits),
            share,
        ]
    };
    let rows: Vec<Vec<String>> = turns.iter().map(row).collect();
    table::render(&["turn", "prompt tokens", "cached", "share"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_agent_has_its_script_and_a_fixed_version() {
        for agent in AGENTS {
            assert!(agent.packages.iter().all(|p| p[1..].contains('@')), "{:?}", agent.packages);
            let script = format!("fixtures/scripted/{}.json", agent.model);
            let text = fs::read_to_string(shell::root().join(script)).unwrap();
            let answers: Vec<String> = serde_json::from_str(&text).unwrap();
            assert!(answers[0].contains(CUPS) && answers[1] == ANSWER, "{answers:?}");
        }
    }

    #[test]
    fn variables_are_read() {
        let lines = "export A=http://x:1/y B=c\nexport D=2\nclaude\nE=3\n";
        let found: Vec<_> = exported(lines).collect();
        assert_eq!(found, [("A", "http://x:1/y"), ("B", "c"), ("D", "2")]);
    }

    #[test]
    fn prefixes_are_shown_by_turn() {
        let turns = [
            (1, Prefixes { queries: 200.0, hits: 50.0 }),
            (2, Prefixes { queries: 400.0, hits: 399.0 }),
        ];
        let table = prefix_table(&turns);
        let cells = |line: &str| -> Vec<String> {
            line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
        };
        let rows: Vec<Vec<String>> = table.lines().skip(2).map(cells).collect();
        assert_eq!(rows, [["1", "200", "50", "25.0 %"], ["2", "400", "399", "99.8 %"]]);
        assert_eq!(last_lines("a\n\n b \nc\nd\n"), "b | c | d");
    }
}
