//! Tools of MCP servers (Model Context Protocol): servers that a file names are started or reached, what
//! they offer is given names for the model, and calls are passed on.
//!
//! The protocol is the library's; here is which programs run, how, and what of an answer a model sees.
//! Whoever calls asks the user first: a model's wish is no permission.

mod config;
mod http;
mod limits;

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use realizar_server::tools::Function;
use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, ContentBlock,
    Implementation, ResourceContents, Tool as TheirTool,
};
use rmcp::service::{RoleClient, RunningService, ServiceExt as _};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::common::client_side_sse::NeverRetry;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use serde_json::{Map, Value, json};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use crate::program::Program;
use crate::ui;
use config::Transport;
pub(crate) use config::{ServerConfig, read};
use http::Http;
use limits::{Bounded, Times, lines, tools};

/// The longest name of a function that every model's format has room for.
const MAX_NAME: usize = 64;
/// Bytes of a result that a model sees.
const MAX_RESULT: usize = 128 << 10;
/// Variables of the environment that programs get beside those of every program: package runners
/// reach their registries through them.
const PASSED: &[&str] = &[
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TEMP",
    "TMP",
];

/// Servers that run, and their tools.
pub(crate) struct Servers {
    servers: Vec<Server>,
    tools: Vec<Tool>,
    times: Times,
}

struct Server {
    name: String,
    /// Dropping it closes the connection.
    client: RunningService<RoleClient, ClientConfig>,
    /// Ended when it is dropped.
    _child: Option<Child>,
}

/// A tool of a server.
#[derive(Clone, Debug)]
pub(crate) struct Tool {
    /// As the model sees it. Its name is the server's own, changed to one that models can write, and
    /// with the server's name before it where two servers have the same.
    pub(crate) function: Function,
    /// The server's name.
    pub(crate) server: String,
    idx: usize,
    own_name: String,
}

/// Why a server cannot be used.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) server: String,
    pub(crate) error: anyhow::Error,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MCP server {}: {}", self.server, ui::one_line(&self.error))
    }
}

/// What came of a call.
#[derive(Debug, PartialEq)]
pub(crate) struct Output {
    pub(crate) text: String,
    /// The tool says that it failed; the text tells the model why.
    pub(crate) is_error: bool,
}

impl Servers {
    /// Starts all at once. Those that do not start are returned separately.
    pub(crate) async fn start(configs: Vec<ServerConfig>) -> (Self, Vec<Failure>) {
        Self::start_within(configs, Times::default()).await
    }

    async fn start_within(configs: Vec<ServerConfig>, times: Times) -> (Self, Vec<Failure>) {
        let mut starting = JoinSet::new();
        for (i, config) in configs.into_iter().enumerate() {
            starting.spawn(async move {
                let name = config.name.clone();
                let started = tokio::time::timeout(times.start, Server::start(config, times)).await;
                let started = started.unwrap_or_else(|_| {
                    Err(anyhow!("starting it timed out after {:?}", times.start))
                });
                (i, started.map_err(|error| Failure { server: name, error }))
            });
        }
        let mut started = starting.join_all().await;
        started.sort_by_key(|(i, _)| *i);
        let (mut servers, mut offers, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        for (_, started) in started {
            match started {
                Ok((server, tools)) => {
                    offers.push((server.name.clone(), tools));
                    servers.push(server);
                }
                Err(failure) => failed.push(failure),
            }
        }
        (Self { servers, tools: named(offers), times }, failed)
    }

    pub(crate) fn tools(&self) -> &[Tool] {
        &self.tools
    }

    /// The tool that the model calls so.
    pub(crate) fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.function.name == name)
    }

    /// Calls a tool.
    ///
    /// # Errors
    /// If the server cannot be reached, does not answer in time or refuses the call. A tool that fails is not an error.
    pub(crate) async fn call(&self, tool: &Tool, arguments: Map<String, Value>) -> Result<Output> {
        let server = &self.servers[tool.idx];
        let params = CallToolRequestParams::new(tool.own_name.clone()).with_arguments(arguments);
        let context = || format!("MCP server {}", server.name);
        // A call that is dropped is cancelled.
        let result = tokio::time::timeout(self.times.call, server.client.call_tool(params)).await;
        let result = result.map_err(|_| anyhow!("a call timed out after {:?}", self.times.call));
        Ok(output(&result.with_context(context)?.with_context(context)?))
    }
}

impl Server {
    async fn start(config: ServerConfig, times: Times) -> Result<(Self, Vec<TheirTool>)> {
        let info = ClientConfig::new(
            ClientCapabilities::default(),
            Implementation::new("realizar", env!("CARGO_PKG_VERSION")),
        );
        let name = config.name;
        let (client, child) = match config.transport {
            Transport::Stdio { command, args, env, dir } => {
                let program = match Path::new(&command) {
                    path if path.is_absolute() => Program::at(path),
                    _ => Program::find(&command)
                        .with_context(|| format!("`{command}` was not found in PATH"))?,
                };
                let mut process = Command::from(program.command(&dir, PASSED));
                process.args(&args).envs(&env).kill_on_drop(true);
                process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
                let mut child =
                    process.spawn().with_context(|| program.path().display().to_string())?;
                let pipes = child.stdout.take().zip(child.stdin.take());
                let last = Arc::new(Mutex::new(String::new()));
                let (server, kept) = (name.clone(), Arc::clone(&last));
                let tell = move |line: &str| {
                    tracing::debug!(server, "{line}");
                    if !line.trim().is_empty() {
                        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                        line.trim().clone_into(&mut kept);
                    }
                };
                let log = child.stderr.take().map(|log| tokio::spawn(lines(log, tell)));
                let pipes = pipes.context("no pipes to the program")?;
                let (out, input) = pipes;
                match info.serve(Bounded::new(AsyncRwTransport::new_client(out, input))).await {
                    Ok(client) => (client, Some(child)),
                    Err(error) => {
                        drop(child);
                        if let Some(log) = log {
                            // Its last line is often the reason.
                            drop(tokio::time::timeout(Duration::from_secs(1), log).await);
                        }
                        let last = last.lock().unwrap_or_else(PoisonError::into_inner);
                        match last.is_empty() {
                            true => return Err(error.into()),
                            false => bail!("it exited with: {last}"),
                        }
                    }
                }
            }
            Transport::Http { url, headers } => {
                let client = Http::new(!url.starts_with("https:"), times.start.max(times.call));
                let mut config = StreamableHttpClientTransportConfig::with_uri(url)
                    .custom_headers(headers.into_iter().collect());
                // No stream can be resumed, see `Http`.
                config.retry_config = Arc::<NeverRetry>::default();
                let transport = StreamableHttpClientTransport::with_client(client, config);
                (info.serve(Bounded::new(transport)).await?, None)
            }
        };
        let has_tools = client.peer_info().is_none_or(|info| info.capabilities.tools.is_some());
        let tools = if has_tools { tools(&client).await? } else { Vec::new() };
        Ok((Self { name, client, _child: child }, tools))
    }
}

/// The tools of servers under names that no two have and every model can write.
fn named(offers: Vec<(String, Vec<TheirTool>)>) -> Vec<Tool> {
    let mut seen = HashSet::new();
    let all = offers.iter().flat_map(|(_, tools)| tools);
    let twice: HashSet<String> =
        all.map(|tool| plain(&tool.name)).filter(|name| !seen.insert(name.clone())).collect();
    let mut used = HashSet::new();
    let mut named = Vec::new();
    for (idx, (server, tools)) in offers.into_iter().enumerate() {
        for tool in tools {
            let mut name = plain(&tool.name);
            if twice.contains(&name) {
                name = plain(&format!("{server}__{name}"));
            }
            let stem = name.clone();
            for n in 2.. {
                if used.insert(name.clone()) {
                    break;
                }
                let end = format!("_{n}");
                name = format!("{}{end}", &stem[..stem.len().min(MAX_NAME - end.len())]);
            }
            let mut function = Function::new(name, parameters(&tool));
            function.description = tool.description.map(String::from);
            let own_name = tool.name.into_owned();
            named.push(Tool { function, server: server.clone(), idx, own_name });
        }
    }
    named
}

/// A name of letters, digits, `_` and `-`.
fn plain(name: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let name: String = name.chars().map(|c| if allowed(c) { c } else { '_' }).collect();
    name[..name.len().min(MAX_NAME)].to_owned()
}

/// The schema of a tool's arguments, an object's whatever the server says.
fn parameters(tool: &TheirTool) -> Value {
    let mut schema = (*tool.input_schema).clone();
    if schema.get("type") != Some(&json!("object")) {
        schema.insert("type".to_owned(), json!("object"));
    }
    schema.entry("properties").or_insert_with(|| json!({}));
    Value::Object(schema)
}

/// What a model sees of a result: its texts, and a note for any other content.
fn output(result: &CallToolResult) -> Output {
    let mut parts: Vec<String> = result.content.iter().map(shown).collect();
    if parts.is_empty() {
        parts.extend(result.structured_content.as_ref().map(Value::to_string));
    }
    let mut text = parts.join("\n");
    if text.len() > MAX_RESULT {
        let n_bytes = text.len();
        text.truncate(text.floor_char_boundary(MAX_RESULT));
        text.push_str(&format!("\n[cut: {n_bytes} bytes in all]"));
    }
    Output { text, is_error: result.is_error == Some(true) }
}

fn shown(block: &ContentBlock) -> String {
    match block {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => format!("[an image, {}]", image.mime_type),
        ContentBlock::Audio(audio) => format!("[audio, {}]", audio.mime_type),
        ContentBlock::Resource(resource) => match &resource.resource {
            ResourceContents::TextResourceContents { text, .. } => text.clone(),
            ResourceContents::BlobResourceContents { uri, .. } => format!("[bytes of {uri}]"),
            _ => "[a resource]".to_owned(),
        },
        ContentBlock::ResourceLink(link) => format!("[a resource: {}]", link.uri),
        _ => "[content of another kind]".to_owned(),
    }
}

#[cfg(all(test, unix))]
mod tests;
