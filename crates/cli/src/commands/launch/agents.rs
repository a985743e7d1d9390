//! The agents, and how each is told of a server and its model: by variables, and by files in a folder of its own.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde_json::{Value, json};

use super::server::ServedName;
use crate::source::cache::create_dir;

/// The lines of Codex' file between these are written at every start; those after them are kept.
const BEGIN: &str = "# Written by `realizar launch` at every start.";
const END: &str = "# Lines from here on are kept.";

/// Agents that `launch` can start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Agent {
    Codex,
    Claude,
    Opencode,
}

/// Fixed properties of an agent.
pub(super) struct Facts {
    /// The name of its program.
    pub(super) program: &'static str,
    /// Its package at npm.
    pub(super) package: &'static str,
    /// Tokens of its first request: its instructions and tools.
    pub(super) first_prompt: u64,
}

/// A variable of the agent's environment; one without a value is removed.
pub(super) type Variable = (&'static str, Option<String>);

/// The server and model that an agent is configured for.
pub(super) struct Setup {
    /// Where its configuration goes.
    pub(super) folder: PathBuf,
    /// The server's address.
    pub(super) url: String,
    pub(super) key: Option<String>,
    pub(super) model: ServedName,
}

impl Agent {
    pub(super) fn facts(self) -> Facts {
        match self {
            Self::Codex => {
                Facts { program: "codex", package: "@openai/codex", first_prompt: 6_200 }
            }
            Self::Claude => Facts {
                program: "claude",
                package: "@anthropic-ai/claude-code",
                first_prompt: 18_000,
            },
            Self::Opencode => {
                Facts { program: "opencode", package: "opencode-ai", first_prompt: 7_300 }
            }
        }
    }

    /// Writes its configuration, and returns its variables.
    pub(super) fn configure(self, setup: &Setup) -> Result<Vec<Variable>> {
        create_dir(&setup.folder)?;
        match self {
            Self::Codex => codex(setup),
            Self::Claude => claude(setup),
            Self::Opencode => opencode(setup),
        }
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn folder_of(setup: &Setup) -> String {
    setup.folder.to_string_lossy().into_owned()
}

/// `config.toml` in `CODEX_HOME`. The agent adds to the file, for instance which folders it may trust.
fn codex(setup: &Setup) -> Result<Vec<Variable>> {
    let path = setup.folder.join("config.toml");
    let before = fs::read_to_string(&path).unwrap_or_default();
    let kept = before.split_once(END).map_or("", |(_, kept)| kept.trim_start());
    let Setup { url, key, model: ServedName { name, context }, .. } = setup;
    // A string of JSON is one of TOML.
    let text = |text: &str| json!(text).to_string();
    let mut lines = vec![
        BEGIN.to_owned(),
        format!("model = {}", text(name)),
        "model_provider = \"realizar\"".to_owned(),
    ];
    lines.extend(context.map(|n| format!("model_context_window = {n}")));
    let provider = "model_providers.realizar";
    lines.push(format!("{provider}.name = \"realizar\""));
    lines.push(format!("{provider}.base_url = {}", text(&format!("{url}/v1"))));
    lines.push(format!("{provider}.wire_api = \"responses\""));
    lines.extend(key.as_ref().map(|_| format!("{provider}.env_key = \"REALIZAR_API_KEY\"")));
    lines.push(END.to_owned());
    write(&path, &format!("{}\n{kept}", lines.join("\n")))?;
    Ok(vec![("CODEX_HOME", Some(folder_of(setup))), ("REALIZAR_API_KEY", key.clone())])
}

/// Variables for Claude Code, whose every model is the server's.
fn claude(setup: &Setup) -> Result<Vec<Variable>> {
    let Setup { folder, url, key, model } = setup;
    // Without the file, it asks for a login first.
    let path = folder.join(".claude.json");
    if !path.exists() {
        write(&path, &json!({"hasCompletedOnboarding": true}).to_string())?;
    }
    let name = Some(model.name.clone());
    // A server without keys takes any, and the agent needs one.
    let token = key.clone().unwrap_or_else(|| "realizar".to_owned());
    Ok(vec![
        ("CLAUDE_CONFIG_DIR", Some(folder_of(setup))),
        ("ANTHROPIC_BASE_URL", Some(url.clone())),
        ("ANTHROPIC_AUTH_TOKEN", Some(token)),
        // It would be preferred to the token.
        ("ANTHROPIC_API_KEY", None),
        ("ANTHROPIC_MODEL", name.clone()),
        ("ANTHROPIC_DEFAULT_OPUS_MODEL", name.clone()),
        ("ANTHROPIC_DEFAULT_SONNET_MODEL", name.clone()),
        ("ANTHROPIC_DEFAULT_HAIKU_MODEL", name.clone()),
        ("CLAUDE_CODE_SUBAGENT_MODEL", name),
        // It takes an unknown model to have a million.
        ("CLAUDE_CODE_MAX_CONTEXT_TOKENS", model.context.map(|n| n.to_string())),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", Some("1".to_owned())),
    ])
}

/// A file for `OPENCODE_CONFIG`, which opencode reads beside the user's own.
fn opencode(setup: &Setup) -> Result<Vec<Variable>> {
    let Setup { folder, url, key, model: ServedName { name, context } } = setup;
    let mut entry = json!({"name": name});
    if let Some(n) = context {
        entry["limit"] = json!({"context": n, "output": n});
    }
    let mut options = json!({"baseURL": format!("{url}/v1")});
    if key.is_some() {
        options["apiKey"] = json!("{env:REALIZAR_API_KEY}");
    }
    let mut models = Value::default();
    models[name] = entry;
    let provider = json!({
        "npm": "@ai-sdk/openai-compatible", "name": "realizar", "options": options,
        "models": models,
    });
    let model = format!("realizar/{name}");
    let config = json!({
        "$schema": "https://opencode.ai/config.json",
        "provider": {"realizar": provider},
        "model": model,
        "small_model": model,
    });
    let path = folder.join("opencode.json");
    write(&path, &format!("{config:#}\n"))?;
    let path = path.to_string_lossy().into_owned();
    Ok(vec![("OPENCODE_CONFIG", Some(path)), ("REALIZAR_API_KEY", key.clone())])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(folder: &Path, key: Option<&str>) -> Setup {
        Setup {
            folder: folder.to_owned(),
            url: "http://127.0.0.1:81".to_owned(),
            key: key.map(str::to_owned),
            model: ServedName { name: "a\"b".to_owned(), context: Some(4096) },
        }
    }

    #[test]
    fn what_codex_adds_to_its_file_is_kept() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("config.toml");
        let read = || {
            let text = fs::read_to_string(&path).expect("the file");
            toml::from_str::<Value>(&text).expect("TOML")
        };
        codex(&setup(dir.path(), None)).expect("written");
        let first = read();
        assert_eq!(
            (&first["model"], &first["model_context_window"]),
            (&json!("a\"b"), &json!(4096))
        );
        let provider = json!({"name": "realizar", "base_url": "http://127.0.0.1:81/v1",
            "wire_api": "responses"});
        assert_eq!(first["model_providers"]["realizar"], provider);
        let trust = "\n[projects.\"/x\"]\ntrust_level = \"trusted\"\n";
        let text = fs::read_to_string(&path).expect("the file");
        fs::write(&path, text + trust).expect("written");
        for _ in 0..2 {
            let variables = codex(&setup(dir.path(), Some("k"))).expect("written");
            assert_eq!(variables[1], ("REALIZAR_API_KEY", Some("k".to_owned())));
            let second = read();
            assert_eq!(second["projects"]["/x"]["trust_level"], "trusted");
            let key = &second["model_providers"]["realizar"]["env_key"];
            assert_eq!(key, "REALIZAR_API_KEY");
        }
        let text = fs::read_to_string(&path).expect("the file");
        assert_eq!(text.matches("trust_level").count(), 1, "{text}");
    }

    #[test]
    fn opencode_gets_a_provider() {
        let dir = tempfile::tempdir().expect("a folder");
        opencode(&setup(dir.path(), Some("k"))).expect("written");
        let text = fs::read_to_string(dir.path().join("opencode.json")).expect("the file");
        let config: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(config["model"], "realizar/a\"b");
        let provider = &config["provider"]["realizar"];
        assert_eq!(provider["models"]["a\"b"]["limit"]["context"], 4096);
        let options = json!({"baseURL": "http://127.0.0.1:81/v1",
            "apiKey": "{env:REALIZAR_API_KEY}"});
        assert_eq!(provider["options"], options);
    }
}
