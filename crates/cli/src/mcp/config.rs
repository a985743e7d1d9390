//! The file that names MCP servers, in the form that desktop clients share: an object `mcpServers` with
//! a member for each server, which has either a `command` or a `url`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use serde_json::Value;
use ureq::http::{HeaderName, HeaderValue, Uri};

use crate::source;
use crate::ui;

/// A server that is to be used.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServerConfig {
    pub(crate) name: String,
    pub(crate) transport: Transport,
}

/// How a server is reached.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Transport {
    /// A program that reads requests from its standard input.
    Stdio {
        command: String,
        args: Vec<String>,
        env: BTreeMap<String, String>,
        /// The directory that it runs in.
        dir: PathBuf,
    },
    /// Streamable HTTP.
    Http { url: String, headers: Vec<(HeaderName, HeaderValue)> },
}

#[derive(Deserialize)]
struct File {
    #[serde(rename = "mcpServers")]
    servers: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    command: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    cwd: Option<PathBuf>,
    url: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    disabled: bool,
    /// What other clients keep there.
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

/// The servers of a file that are not disabled. What of it is not used is noted.
pub(crate) fn read(path: &Path) -> Result<Vec<ServerConfig>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    // A program's relative arguments mean files beside the file that names them.
    let dir = std::path::absolute(path).with_context(|| path.display().to_string())?;
    let dir = dir.parent().unwrap_or(Path::new("/"));
    let (servers, notes) = parse(&text, dir).with_context(|| path.display().to_string())?;
    notes.iter().for_each(|note| ui::note(&format!("note: {note}")));
    Ok(servers)
}

fn parse(text: &str, dir: &Path) -> Result<(Vec<ServerConfig>, Vec<String>)> {
    let file: File = serde_json::from_str(text)?;
    let (mut servers, mut notes) = (Vec::new(), Vec::new());
    for (name, entry) in file.servers {
        if entry.disabled {
            continue;
        }
        for key in entry.others.keys() {
            notes.push(format!("MCP server {name}: `{key}` is ignored"));
        }
        let transport = entry.transport(dir).with_context(|| format!("server {name}"))?;
        servers.push(ServerConfig { name, transport });
    }
    if servers.is_empty() {
        bail!("no server in `mcpServers`");
    }
    Ok((servers, notes))
}

impl Entry {
    fn transport(self, dir: &Path) -> Result<Transport> {
        match (self.command, self.url) {
            (Some(command), None) => {
                expect_kind(self.kind.as_deref(), &["stdio"])?;
                let dir = self.cwd.map_or_else(|| dir.to_owned(), |cwd| dir.join(cwd));
                Ok(Transport::Stdio { command, args: self.args, env: self.env, dir })
            }
            (None, Some(url)) => {
                expect_kind(self.kind.as_deref(), &["http", "streamable-http", "streamableHttp"])?;
                check_url(&url)?;
                let header = |(name, value): (String, String)| {
                    let parsed = HeaderName::from_bytes(name.as_bytes()).ok();
                    let parsed = parsed.zip(HeaderValue::from_str(&value).ok());
                    parsed.ok_or_else(|| anyhow!("`{name}` is not a valid HTTP header"))
                };
                let headers = self.headers.into_iter().map(header).collect::<Result<_>>()?;
                Ok(Transport::Http { url, headers })
            }
            (Some(_), Some(_)) => bail!("`command` and `url` are mutually exclusive"),
            (None, None) => bail!("`command` or `url` is required"),
        }
    }
}

fn expect_kind(kind: Option<&str>, known: &[&str]) -> Result<()> {
    match kind {
        None => Ok(()),
        Some(kind) if known.contains(&kind) => Ok(()),
        Some("sse") => bail!("the transport `sse` is not supported, use streamable HTTP"),
        Some(kind) => bail!("type `{kind}`: expected one of {}", known.join(", ")),
    }
}

/// Refuses what would send arguments, results and keys in the clear to another machine.
fn check_url(url: &str) -> Result<()> {
    let uri: Uri = url.parse().map_err(|error| anyhow!("not a URL: {error}"))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("https"), Some(_)) => Ok(()),
        (Some("http"), Some(host)) if source::is_local(host) => Ok(()),
        (Some("http"), Some(_)) => bail!("plain http is allowed for this machine only, use https"),
        _ => bail!("expected a URL that begins with https://"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn one(entry: &Value) -> Result<Transport> {
        let text = json!({"mcpServers": {"s": entry}}).to_string();
        let (mut servers, _) = parse(&text, Path::new("/etc/x"))?;
        Ok(servers.remove(0).transport)
    }

    #[test]
    fn programs_and_urls() {
        let found =
            one(&json!({"command": "npx", "args": ["-y", "p"], "env": {"A": "b"}})).unwrap();
        let want = Transport::Stdio {
            command: "npx".to_owned(),
            args: vec!["-y".to_owned(), "p".to_owned()],
            env: [("A".to_owned(), "b".to_owned())].into(),
            dir: "/etc/x".into(),
        };
        assert_eq!(found, want);
        let Transport::Stdio { dir, .. } = one(&json!({"command": "a", "cwd": "y"})).unwrap()
        else {
            panic!("a program");
        };
        assert_eq!(dir, Path::new("/etc/x/y"));
        let url = "https://h/mcp";
        let found =
            one(&json!({"type": "http", "url": url, "headers": {"Authorization": "Bearer t"}}));
        let headers =
            vec![(HeaderName::from_static("authorization"), HeaderValue::from_static("Bearer t"))];
        assert_eq!(found.unwrap(), Transport::Http { url: url.to_owned(), headers });
    }

    #[test]
    fn what_cannot_be_used_is_refused() {
        for (entry, want) in [
            (json!({}), "`command` or `url` is required"),
            (json!({"command": "a", "url": "https://h/"}), "mutually exclusive"),
            (json!({"url": "http://h/mcp"}), "plain http"),
            (json!({"url": "ftp://h/mcp"}), "https://"),
            (json!({"type": "sse", "url": "https://h/"}), "`sse` is not supported"),
            (json!({"type": "http", "command": "a"}), "expected one of stdio"),
            (json!({"url": "https://h/", "headers": {"a b": "c"}}), "`a b`"),
            (json!({"command": 1}), "expected a string"),
        ] {
            let error = format!("{:#}", one(&entry).expect_err("refused"));
            assert!(error.contains(want), "{entry}: {error}");
        }
        assert!(one(&json!({"url": "http://127.0.0.1:3000/mcp"})).is_ok());
        let error = parse(r#"{"mcpServers": {}}"#, Path::new("/")).expect_err("none");
        assert!(error.to_string().contains("no server"), "{error}");
    }

    #[test]
    fn what_other_clients_keep_there_is_noted() {
        let text = json!({"mcpServers": {
            "a": {"command": "x", "autoApprove": []},
            "b": {"command": "y", "disabled": true},
        }});
        let (servers, notes) = parse(&text.to_string(), Path::new("/")).unwrap();
        assert_eq!(servers.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["a"]);
        assert_eq!(notes, ["MCP server a: `autoApprove` is ignored"]);
    }
}
