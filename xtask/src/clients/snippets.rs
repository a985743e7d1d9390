//! What `docs/use-it-from.md` shows for a client: the fenced block whose info string is a language and
//! the client's name. Python and JavaScript run as they are; a block in another language is a file for
//! the client's script, which tries it as the ability [`ABILITY`], or an agent's configuration.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Client, Tried, Verdict};
use crate::load::server::Server;
use crate::{load, shell};

/// The name under which the table has it.
pub(super) const ABILITY: &str = "document";
const PAGE: &str = "docs/use-it-from.md";
/// The server's address, its model and the model's context, as the page has them.
const URL: &str = "http://127.0.0.1:8080";
const MODEL: &str = "smollm2";
const CONTEXT: &str = "8192";

/// A block of the page.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Snippet<'a> {
    language: &'a str,
    client: &'a str,
    text: String,
}

impl Snippet<'_> {
    /// The suffix of its file.
    fn suffix(&self) -> &str {
        match self.language {
            "python" => "py",
            "js" => "mjs",
            other => other,
        }
    }

    /// Its text for a server, its model and the model's context.
    fn of(&self, (url, model, context): (&str, &str, u64)) -> String {
        let text = self.text.replace(CONTEXT, &context.to_string());
        text.replace(URL, url).replace(MODEL, model)
    }
}

/// The text of the page.
fn page() -> Result<String> {
    fs::read_to_string(shell::root().join(PAGE)).context(PAGE)
}

/// The blocks that name a client.
fn snippets(page: &str) -> Vec<Snippet<'_>> {
    let mut snippets: Vec<Snippet<'_>> = Vec::new();
    let mut is_open = None; // whether the block that is open names a client
    for line in page.lines() {
        if let Some(info) = line.strip_prefix("```") {
            is_open = match is_open {
                Some(_) => None,
                None => {
                    let named = info.split_once(' ').filter(|(language, _)| *language != "console");
                    snippets.extend(named.map(|(language, client)| Snippet {
                        language,
                        client,
                        text: String::new(),
                    }));
                    Some(named.is_some())
                }
            };
        } else if let (Some(true), Some(snippet)) = (is_open, snippets.last_mut()) {
            snippet.text += line;
            snippet.text.push('\n');
        }
    }
    snippets
}

/// Writes the block of a client, if there is one, into the client's environment.
pub(super) fn write(client: &Client, server: &Server) -> Result<Option<PathBuf>> {
    let page = page()?;
    let Some(snippet) = snippets(&page).into_iter().find(|s| s.client == client.name) else {
        return Ok(None);
    };
    let folder = client.environment.install(client.name)?;
    let path = folder.join(format!("snippet.{}", snippet.suffix()));
    let url = server.client.url();
    let text = snippet.of((url, &server.client.model, context(&server.client)?));
    fs::write(&path, text).with_context(|| path.display().to_string())?;
    Ok(Some(path))
}

/// The block of an agent, for a server, its model and the model's context.
pub(super) fn of_agent(name: &str, server: (&str, &str, u64)) -> Result<String> {
    let page = page()?;
    let snippet = snippets(&page).into_iter().find(|s| s.client == name);
    Ok(snippet.with_context(|| format!("{PAGE} has no block for {name}"))?.of(server))
}

/// The context of a server's first model.
pub(super) fn context(client: &load::client::Client) -> Result<u64> {
    let models: Value = serde_json::from_str(&client.get("/v1/models")?)?;
    let context = models["data"][0]["max_model_len"].as_u64();
    context.context("/v1/models has no data[0].max_model_len")
}

/// Runs a block by the interpreter of the client's environment. It must print an answer.
pub(super) fn run(client: &Client, file: &Path) -> Result<Tried> {
    let folder = client.environment.install(client.name)?;
    let mut command = client.environment.interpret(&folder, file);
    // Otherwise it asks the network for prices while it is imported.
    command.env("LITELLM_LOCAL_MODEL_COST_MAP", "True");
    let out = super::output(command)?;
    let answer = String::from_utf8_lossy(&out.stdout);
    let stderr = String::from_utf8_lossy(&out.stderr);
    let (verdict, note) = if !out.status.success() {
        let last = stderr.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("no message");
        (Verdict::Failed, format!("it exited with {}: {last}", out.status))
    } else if answer.trim().is_empty() {
        (Verdict::Failed, "it printed no answer".to_owned())
    } else {
        (Verdict::Passed, String::new())
    };
    Ok(Tried { row: client.name, what: ABILITY.to_owned(), verdict, note })
}

#[cfg(test)]
mod tests {
    use super::super::agents::AGENTS;
    use super::super::{CLIENTS, EMBEDDING_MODEL};
    use super::*;

    #[test]
    fn blocks_that_name_a_client_are_read() {
        let page = "a\n```console skip: no\n$ x\n```\n```python one\nb\n\nc\n```\n```json\n{}\n```\n\
                    ```yaml two\nd\n```\n";
        let snippet =
            |language, client, text: &str| Snippet { language, client, text: text.to_owned() };
        let expected = [snippet("python", "one", "b\n\nc\n"), snippet("yaml", "two", "d\n")];
        assert_eq!(snippets(page), expected);
    }

    #[test]
    fn blocks_are_for_a_server() {
        let text = "m(\"http://127.0.0.1:8080/v1\", \"openai/smollm2\", 8192)\n".to_owned();
        let snippet = Snippet { language: "js", client: "x", text };
        assert_eq!(snippet.suffix(), "mjs");
        let text = snippet.of(("http://127.0.0.1:9", "other.gguf", 512));
        assert_eq!(text, "m(\"http://127.0.0.1:9/v1\", \"openai/other.gguf\", 512)\n");
    }

    #[test]
    fn every_block_of_the_page_runs() {
        let page = page().unwrap();
        let snippets = snippets(&page);
        for snippet in &snippets {
            // Open WebUI lists the models itself.
            let lists_models = snippet.client == "open-webui";
            assert!(snippet.text.contains(URL), "{snippet:?}");
            assert_ne!(snippet.text.contains(MODEL), lists_models, "{snippet:?}");
            assert!(!snippet.text.contains(EMBEDDING_MODEL), "{snippet:?}");
            if AGENTS.iter().any(|agent| agent.name == snippet.client) {
                assert!(snippet.text.contains(CONTEXT), "{snippet:?}");
                continue;
            }
            let client = CLIENTS.iter().find(|client| client.name == snippet.client);
            let client = client.unwrap_or_else(|| panic!("no client {}", snippet.client));
            let is_program = ["python", "js"].contains(&snippet.language);
            assert_ne!(client.abilities.contains(&ABILITY), is_program, "{}", client.name);
        }
        let by_script = CLIENTS.iter().filter(|client| client.abilities.contains(&ABILITY));
        let names = by_script.map(|client| client.name);
        for name in names.chain(AGENTS.iter().map(|agent| agent.name)) {
            assert!(snippets.iter().any(|s| s.client == name), "{name}");
        }
    }
}
