//! `realizar launch` with an agent that only records what it is told.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::cli::{Cli, error_line, stdout};
use crate::fixture;

/// An agent: writes its variables, its arguments and the server's models to the folder `record`, and fails with
/// status 7.
const AGENT: &str = r#"#!/bin/bash
env > "$RECORD/env"
printf '%s\n' "$@" > "$RECORD/args"
files="$CODEX_HOME/config.toml $OPENCODE_CONFIG"
port=$({ cat $files; echo "$ANTHROPIC_BASE_URL"; } 2> /dev/null | sed -n 's/.*127\.0\.0\.1:\([0-9]*\).*/\1/p' | head -n 1)
echo "$port" > "$RECORD/port"
exec 3<> "/dev/tcp/127.0.0.1/$port"
printf 'GET /v1/models HTTP/1.0\r\n\r\n' >&3
cat <&3 > "$RECORD/models"
exit 7
"#;

/// A home with agents on the path.
struct Home {
    cli: Cli,
}

impl Home {
    fn new() -> Self {
        let cli = Cli::new();
        for dir in ["bin", "home", "record", "settings"] {
            fs::create_dir(cli.path(dir)).expect("a folder");
        }
        for name in ["codex", "claude", "opencode"] {
            let path = cli.path("bin").join(name);
            fs::write(&path, AGENT).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
        }
        Self { cli }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.cli.command(&["launch"]);
        let path = std::env::var("PATH").expect("a path");
        command.args(args).env("PATH", format!("{}:{path}", self.cli.path("bin").display()));
        command.env("HOME", self.cli.path("home")).env("RECORD", self.cli.path("record"));
        command.env("REALIZAR_DEVICE", "cpu").env("ANTHROPIC_API_KEY", "of the user");
        command.env_remove("REALIZAR_API_KEY");
        command
    }

    fn record(&self, name: &str) -> String {
        fs::read_to_string(self.cli.path("record").join(name)).expect("recorded")
    }

    fn variable(&self, name: &str) -> Option<String> {
        let env = self.record("env");
        let start = format!("{name}=");
        env.lines().find_map(|line| line.strip_prefix(&start)).map(str::to_owned)
    }

    /// The server's port and the name of its model, as the agent saw them.
    fn server(&self) -> (u16, Value) {
        let answer = self.record("models");
        let body = answer.split_once("\r\n\r\n").expect("a body").1;
        let list: Value = serde_json::from_str(body).expect("JSON");
        (self.record("port").trim().parse().expect("a port"), list["data"][0]["id"].clone())
    }
}

fn model() -> String {
    fixture("model-f32.gguf").display().to_string()
}

fn is_open(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

#[test]
fn agents_are_told_of_a_server_that_ends_with_them() {
    let named = format!("tiny={}", model());
    for agent in ["codex", "claude", "opencode"] {
        let home = Home::new();
        let port = free_port().to_string();
        let args = [agent, &named, "--port", &port, "--", "exec", "say hi", "--flag"];
        let output = home.command(&args).output().expect("the binary starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "{agent}: {errors}");
        assert_eq!(home.record("args"), "exec\nsay hi\n--flag\n");
        let (port, model) = home.server();
        assert_eq!(model, "tiny", "{agent}");
        assert!(!is_open(port), "{agent}: the server has ended");
        let folder = home.cli.path("cache/launch").join(agent);
        let url = format!("http://127.0.0.1:{port}");
        let text = |name: &str| fs::read_to_string(folder.join(name)).expect("a file");
        match agent {
            "codex" => {
                assert_eq!(home.variable("CODEX_HOME").map(PathBuf::from), Some(folder.clone()));
                let config = text("config.toml");
                assert!(config.contains("model = \"tiny\"\n"), "{config}");
                assert!(config.contains(&format!(".base_url = \"{url}/v1\"\n")), "{config}");
                assert!(config.contains(".wire_api = \"responses\"\n"), "{config}");
            }
            "claude" => {
                let dir = home.variable("CLAUDE_CONFIG_DIR");
                assert_eq!(dir.map(PathBuf::from), Some(folder.clone()));
                assert_eq!(home.variable("ANTHROPIC_BASE_URL"), Some(url));
                assert_eq!(home.variable("ANTHROPIC_MODEL").as_deref(), Some("tiny"));
                assert_eq!(home.variable("ANTHROPIC_AUTH_TOKEN").as_deref(), Some("realizar"));
                assert_eq!(home.variable("ANTHROPIC_API_KEY"), None);
            }
            _ => {
                let config: Value = serde_json::from_str(&text("opencode.json")).expect("JSON");
                let provider = &config["provider"]["realizar"];
                assert_eq!(config["model"], "realizar/tiny");
                assert_eq!(provider["options"], json!({"baseURL": format!("{url}/v1")}));
                assert_eq!(provider["npm"], "@ai-sdk/openai-compatible");
            }
        }
        assert!(is_empty(&home.cli.path("home")) && is_empty(&home.cli.path("settings")));
    }
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).expect("a folder").next().is_none()
}

/// A port that nothing listens on.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}

#[test]
fn a_server_that_runs_is_used_and_stays() {
    let (home, model) = (Home::new(), model());
    let (_server, url) = crate::serve::start(&[&model, "--port", "0", "--alias", "tiny"]);
    let port = url.rsplit(':').next().expect("a port").to_owned();
    let output = home.command(&["codex", "--port", &port]).output().expect("the binary starts");
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
    let (used, model) = home.server();
    assert_eq!((used.to_string(), model), (port.clone(), json!("tiny")));
    assert!(is_open(used), "it has not ended");
    let other = home.command(&["codex", "other", "--port", &port]).output();
    let error = error_line(&other.expect("the binary starts"), 1, "another model");
    assert!(error.contains("does not have other; it has tiny"), "{error}");
}

#[test]
fn what_is_missing_is_told() {
    let home = Home::new();
    let mut command = home.command(&["opencode"]);
    let output = command.env("PATH", home.cli.path("empty")).output().expect("the binary starts");
    let error = error_line(&output, 1, "no agent");
    assert!(error.contains("`npm install -g opencode-ai` installs it"), "{error}");
    let port = free_port().to_string();
    let output = home.command(&["codex", "--port", &port]).output().expect("the binary starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("error: no model has been pulled"), "{errors}");
    let args = ["codex", "no-such.gguf", "--port", &port];
    let output = home.command(&args).output().expect("the binary starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("error: the server did not start: no-such.gguf"), "{errors}");
    let help = stdout(&home.command(&["--help"]).output().expect("the binary starts"));
    assert!(help.contains("codex, claude or opencode"), "{help}");
}
