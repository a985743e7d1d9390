//! Limits on the time and memory that a server may take: times, requests of its own, the lists of its tools, lines of its
//! log.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rmcp::model::{
    ClientConfig, ClientJsonRpcMessage, JsonRpcMessage, PaginatedRequestParams,
    ServerJsonRpcMessage, Tool,
};
use rmcp::service::{RoleClient, RunningService};
use rmcp::transport::Transport;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

/// Tools of a server, their size as JSON, and the pages of their list.
const MAX_TOOLS: usize = 1000;
const MAX_TOOLS_BYTES: usize = 4 << 20;
const MAX_PAGES: usize = 100;
/// Requests of a server whose answers it has not read. It needs none but a ping.
const MAX_REQUESTS: usize = 16;
/// Bytes of a line that a program writes to standard error; the rest of a longer one is dropped.
pub(super) const MAX_LOG_LINE: usize = 4 << 10;

/// Times that a server may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// To start and to list its tools, which includes what `npx` and `uvx` download.
    pub(super) start: Duration,
    /// To answer a call.
    pub(super) call: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self { start: Duration::from_secs(120), call: Duration::from_secs(600) }
    }
}

/// All tools of a server.
///
/// # Errors
/// If it does not list them, or does not come to an end with it.
pub(super) async fn tools(client: &RunningService<RoleClient, ClientConfig>) -> Result<Vec<Tool>> {
    let (mut tools, mut n_bytes, mut cursor) = (Vec::new(), 0, None);
    for _ in 0..MAX_PAGES {
        let params = PaginatedRequestParams::default().with_cursor(cursor);
        let page = client.list_tools(Some(params)).await?;
        for tool in &page.tools {
            n_bytes += serde_json::to_vec(tool).context("a tool")?.len();
        }
        tools.extend(page.tools);
        ensure!(tools.len() <= MAX_TOOLS, "it has more than {MAX_TOOLS} tools");
        ensure!(
            n_bytes <= MAX_TOOLS_BYTES,
            "the descriptions of its tools are larger than {} MiB",
            MAX_TOOLS_BYTES >> 20
        );
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(tools);
        }
    }
    bail!("the list of its tools has more than {MAX_PAGES} pages")
}

/// A transport without what a client of tools needs not: notifications, and more than a few requests at a time.
pub(super) struct Bounded<T> {
    inner: T,
    n_requests: Arc<AtomicUsize>,
}

impl<T> Bounded<T> {
    pub(super) fn new(inner: T) -> Self {
        Self { inner, n_requests: Arc::default() }
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Bounded<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let is_response = matches!(message, JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_));
        let n_requests = is_response.then(|| Arc::clone(&self.n_requests));
        let sent = self.inner.send(message);
        async move {
            let result = sent.await;
            if let Some(n_requests) = n_requests {
                let less = |n: usize| Some(n.saturating_sub(1));
                let _ = n_requests.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
            }
            result
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            match self.inner.receive().await? {
                JsonRpcMessage::Notification(_) => {}
                JsonRpcMessage::Request(request) => {
                    // Others are not answered: the server reads no answers.
                    if self.n_requests.load(Ordering::Relaxed) < MAX_REQUESTS {
                        self.n_requests.fetch_add(1, Ordering::Relaxed);
                        return Some(JsonRpcMessage::Request(request));
                    }
                }
                message => return Some(message),
            }
        }
    }

    fn close(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send {
        self.inner.close()
    }
}

/// Calls `tell` with the first [`MAX_LOG_LINE`] bytes of each line of a log, until it ends.
pub(super) async fn lines(log: impl AsyncRead + Unpin, mut tell: impl FnMut(&str)) {
    let mut log = BufReader::new(log);
    let mut line = Vec::new();
    loop {
        let piece = match log.fill_buf().await {
            Ok(piece) if !piece.is_empty() => piece,
            _ => break,
        };
        let end = piece.iter().position(|&byte| byte == b'\n');
        let text = &piece[..end.unwrap_or(piece.len())];
        line.extend_from_slice(&text[..text.len().min(MAX_LOG_LINE - line.len())]);
        let n_read = text.len() + usize::from(end.is_some());
        log.consume(n_read);
        if end.is_some() {
            tell(String::from_utf8_lossy(&line).trim_end());
            line.clear();
        }
    }
    if !line.is_empty() {
        tell(String::from_utf8_lossy(&line).trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_of_a_log_are_cut() {
        let long = "x".repeat(3 * MAX_LOG_LINE);
        let log = [b"a\r\n\n", long.as_bytes(), b"\nb\xff\nend"].concat();
        let mut told = Vec::new();
        lines(log.as_slice(), |line| told.push(line.to_owned())).await;
        assert_eq!(told, ["a", "", &long[..MAX_LOG_LINE], "b\u{fffd}", "end"]);
    }
}
