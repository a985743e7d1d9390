//! What a server tells of its work in `/metrics`, in Prometheus' text format.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::client::Client;

/// How long a server may take until it tells that nothing runs.
const IDLE_LIMIT: Duration = Duration::from_secs(15);

/// The gauges of a server at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Gauges {
    pub(crate) running: f64,
    pub(crate) waiting: f64,
    /// The fraction of the key-value cache that is in use; `None` where the server does not tell.
    pub(crate) kv_usage: Option<f64>,
}

impl Gauges {
    pub(crate) fn of(client: &Client) -> Result<Self> {
        Self::parse(&client.get("/metrics")?)
    }

    fn parse(text: &str) -> Result<Self> {
        let either = |ours: &str, llama: &str| {
            let found = value(text, ours).or_else(|| value(text, llama));
            found.with_context(|| format!("/metrics has neither {ours} nor {llama}"))
        };
        Ok(Self {
            running: either("vllm:num_requests_running", "llamacpp:requests_processing")?,
            waiting: either("vllm:num_requests_waiting", "llamacpp:requests_deferred")?,
            kv_usage: value(text, "vllm:kv_cache_usage_perc"),
        })
    }

    /// Waits until no request runs or waits, and returns how long that took. An error tells what
    /// still does.
    pub(crate) fn wait_idle(client: &Client) -> Result<(Self, Duration)> {
        let start = Instant::now();
        loop {
            let gauges = Self::of(client)?;
            if gauges.running == 0.0 && gauges.waiting == 0.0 {
                return Ok((gauges, start.elapsed()));
            }
            if start.elapsed() > IDLE_LIMIT {
                let Self { running, waiting, .. } = gauges;
                bail!("after {IDLE_LIMIT:?} {running} requests run and {waiting} wait");
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// How many requests the server has finished.
pub(crate) fn finished(client: &Client) -> Result<f64> {
    let text = client.get("/metrics")?;
    let found = ["vllm:request_success_total", "vllm:request_success"]
        .iter()
        .find_map(|name| value(&text, name));
    found.context("/metrics has no vllm:request_success")
}

/// How often a request lost its place for others.
pub(crate) fn preemptions(client: &Client) -> Result<f64> {
    let text = client.get("/metrics")?;
    value(&text, "vllm:num_preemptions_total").context("/metrics has no vllm:num_preemptions")
}

/// Tokens of prompts that were looked up in the prefix cache, and those that were in it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Prefixes {
    pub(crate) queries: f64,
    pub(crate) hits: f64,
}

impl Prefixes {
    /// The hits as a fraction of the queries, from 0 to 1.
    pub(crate) fn share(self) -> f64 {
        self.hits / self.queries.max(1.0)
    }

    pub(crate) fn since(self, before: Self) -> Self {
        Self { queries: self.queries - before.queries, hits: self.hits - before.hits }
    }

    pub(crate) fn and(self, more: Self) -> Self {
        Self { queries: self.queries + more.queries, hits: self.hits + more.hits }
    }
}

/// The counters of the server's prefix cache.
pub(crate) fn prefixes(client: &Client) -> Result<Prefixes> {
    let text = client.get("/metrics")?;
    let of = |name: &str| value(&text, name).with_context(|| format!("/metrics has no {name}"));
    Ok(Prefixes {
        queries: of("vllm:prefix_cache_queries_total")?,
        hits: of("vllm:prefix_cache_hits_total")?,
    })
}

/// The sum of a metric's values over all its labels.
fn value(text: &str, name: &str) -> Option<f64> {
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let rest = match rest.strip_prefix('{') {
            Some(labels) => &labels[labels.rfind('}')? + 1..],
            None => rest.strip_prefix(' ')?,
        };
        rest.split_whitespace().next()?.parse::<f64>().ok()
    });
    values.reduce(|a, b| a + b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_are_read_by_either_name() {
        let ours = "\
            # HELP vllm:num_requests_running Requests.\n\
            # TYPE vllm:num_requests_running gauge\n\
            vllm:num_requests_running{engine=\"0\",model_name=\"a}b\"} 2\n\
            vllm:num_requests_running{engine=\"1\"} 1.0 1700000000\n\
            vllm:num_requests_waiting 4\n\
            vllm:num_requests_waiting_by_reason 9\n\
            vllm:kv_cache_usage_perc 0.25\n";
        let want = Gauges { running: 3.0, waiting: 4.0, kv_usage: Some(0.25) };
        assert_eq!(Gauges::parse(ours).unwrap(), want);
        let theirs = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n";
        let want = Gauges { running: 1.0, waiting: 0.0, kv_usage: None };
        assert_eq!(Gauges::parse(theirs).unwrap(), want);
        let error = Gauges::parse("other 1\n").unwrap_err().to_string();
        assert!(error.contains("vllm:num_requests_running"), "{error}");
    }
}
