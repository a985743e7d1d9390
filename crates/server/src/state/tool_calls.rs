//! Calls of tools that run. When the server ends they have the time that running requests have, and are dropped then.

use std::time::Duration;

use tokio::sync::watch;

/// The calls of a server.
#[derive(Debug)]
pub(crate) struct ToolCalls {
    n_running: watch::Sender<usize>,
    is_over: watch::Sender<bool>,
}

impl Default for ToolCalls {
    fn default() -> Self {
        Self { n_running: watch::Sender::new(0), is_over: watch::Sender::new(false) }
    }
}

impl ToolCalls {
    /// Runs a call; `None` if the server ends before it does.
    pub(crate) async fn run<T>(&self, call: impl Future<Output = T>) -> Option<T> {
        self.n_running.send_modify(|n| *n += 1);
        let _running = Running(&self.n_running);
        let mut is_over = self.is_over.subscribe();
        tokio::select! {
            result = call => Some(result),
            _ = is_over.wait_for(|is_over| *is_over) => None,
        }
    }

    /// Waits for the calls that run, and drops those that take longer.
    pub(crate) async fn end(&self, grace: Duration) {
        let mut n_running = self.n_running.subscribe();
        let none = n_running.wait_for(|n| *n == 0);
        // Whether all ended in time makes no difference to what follows.
        let _ = tokio::time::timeout(grace, none).await;
        self.is_over.send_replace(true);
    }
}

struct Running<'a>(&'a watch::Sender<usize>);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|n| *n -= 1);
    }
}
