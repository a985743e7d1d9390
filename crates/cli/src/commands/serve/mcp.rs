//! The tools of a server: those of the MCP servers of a file, which start while it loads its models.

use std::fmt;
use std::sync::{Arc, OnceLock};

use realizar_server::{ToolCallError, ToolCallFuture, ToolHost, ToolOutput, ToolSource};
use serde_json::{Map, Value};

use crate::mcp::{Failure, Output, ServerConfig, Servers};
use crate::ui;

/// MCP servers that run, or are about to.
pub(super) struct Host {
    names: Vec<String>,
    started: OnceLock<(Servers, Vec<Failure>)>,
}

impl Host {
    /// For these servers.
    pub(super) fn new(configs: &[ServerConfig]) -> Arc<Self> {
        let names = configs.iter().map(|config| config.name.clone()).collect();
        Arc::new(Self { names, started: OnceLock::new() })
    }

    /// Starts them, in the background. Those that cannot be used are logged.
    pub(super) fn start(self: Arc<Self>, configs: Vec<ServerConfig>) {
        tokio::spawn(async move {
            let started = Servers::start(configs).await;
            for failure in &started.1 {
                tracing::warn!("{failure}");
            }
            self.started.get_or_init(|| started);
        });
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("names", &self.names).finish_non_exhaustive()
    }
}

impl ToolHost for Host {
    fn sources(&self) -> Vec<ToolSource> {
        let source = |name: &String| {
            let (tools, error) = match self.started.get() {
                None => (Vec::new(), Some("it is starting".to_owned())),
                Some((servers, failed)) => {
                    let own = servers.tools().iter().filter(|tool| tool.server == *name);
                    let failure = failed.iter().find(|failure| failure.server == *name);
                    let error = failure.map(|failure| ui::one_line(&failure.error));
                    (own.map(|tool| tool.function.to_chat()).collect(), error)
                }
            };
            ToolSource { name: name.clone(), tools, error }
        };
        self.names.iter().map(source).collect()
    }

    fn call(&self, name: &str, arguments: Map<String, Value>) -> ToolCallFuture<'_> {
        let name = name.to_owned();
        Box::pin(async move {
            let servers = self.started.get().map(|(servers, _)| servers);
            let found = servers.and_then(|servers| Some((servers, servers.tool(&name)?)));
            let (servers, tool) = found.ok_or(ToolCallError::Unknown(name))?;
            tracing::info!(server = tool.server, tool = tool.function.name, "tool call");
            match servers.call(tool, arguments).await {
                Ok(Output { text, is_error }) => Ok(ToolOutput { content: text, is_error }),
                Err(error) => Err(ToolCallError::Failed(ui::one_line(&error))),
            }
        })
    }
}
