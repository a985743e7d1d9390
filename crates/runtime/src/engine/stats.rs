//! Statistics for monitoring. Their lock is held for single updates only.
//!
//! The bounds of the histograms are those of vLLM's metrics, which dashboards expect.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Bucket bounds of the time to first token, in seconds.
const TTFT: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];

/// Bucket bounds of the inter-token latency, in seconds.
const INTER_TOKEN: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];

/// Bucket bounds of the times of requests and of their phases, in seconds.
const REQUEST: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];

/// A histogram of durations.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    /// The upper bounds of all buckets but the last, in seconds.
    pub bounds: &'static [f64],
    /// The number of durations in each bucket.
    pub counts: Vec<u64>, // [bounds.len() + 1]
    /// The sum of all durations, in seconds.
    pub sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(super) fn record(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        self.counts[self.bounds.partition_point(|&bound| bound < seconds)] += 1;
        self.sum += seconds;
    }
}

/// Completed answers and embeddings by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FinishCounts {
    /// An end-of-generation token, a stop token or a stop text.
    pub stop: u64,
    /// The maximum number of tokens, or the end of the context.
    pub length: u64,
    /// Complete embeddings.
    pub embedding: u64,
    /// The request was cancelled.
    pub cancelled: u64,
    /// The request failed.
    pub failed: u64,
}

/// The state of an engine, and its counters since it was started.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineStats {
    /// Running requests.
    pub running: usize,
    /// Waiting requests.
    pub waiting: usize,
    /// Tokens of waiting and preempted sequences, as of the last step.
    pub waiting_tokens: usize,
    /// Pages of the key-value cache that requests hold, in the fullest group of layers.
    pub kv_used_pages: usize,
    /// Pages of that group that only the prefix cache holds, evicted when they are needed.
    pub kv_idle_pages: usize,
    /// All pages of that group.
    pub kv_total_pages: usize,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Generated tokens.
    pub generated_tokens: u64,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Prompt tokens found in the prefix cache.
    pub prefix_hits: u64,
    /// Pages of tokens evicted from the prefix cache.
    pub prefix_evictions: u64,
    /// Recurrent states that requests hold; all counts of states are 0 for models without.
    pub states_used: usize,
    /// The capacity of the pool of recurrent states.
    pub states_total: usize,
    /// Recurrent states that the prefix cache holds.
    pub prefix_states: usize,
    /// Recurrent states stored in the prefix cache.
    pub prefix_states_stored: u64,
    /// Recurrent states evicted from the prefix cache.
    pub prefix_state_evictions: u64,
    /// Prompt tokens whose pages the prefix cache had, without a state to continue from.
    pub prefix_stateless: u64,
    /// Preemptions of sequences.
    pub preemptions: u64,
    /// Steps that panicked; each ended its requests.
    pub panics: u64,
    /// Completed answers and embeddings.
    pub finished: FinishCounts,
    /// Draft tokens that were run.
    pub draft_tokens: u64,
    /// Draft tokens that were accepted.
    pub accepted_tokens: u64,
    /// Decode rows launched ahead, before the previous step was collected.
    pub ahead_rows: u64,
    /// Rows launched ahead that were discarded: the answer had ended, or got another token.
    pub ahead_wasted: u64,
    /// Draft tokens by prompt lookup.
    pub drafts_by_lookup: DraftCounts,
    /// Draft tokens by a draft model.
    pub drafts_by_model: DraftCounts,
    /// Draft tokens by the model's own multi-token prediction layer.
    pub drafts_by_head: DraftCounts,
    /// Time to first token, from a request's arrival.
    pub ttft: Histogram,
    /// Inter-token latency.
    pub inter_token: Histogram,
    /// End-to-end time, from a request's arrival to its end.
    pub e2e: Histogram,
    /// Queue time, from a request's arrival to its first step.
    pub queue: Histogram,
    /// Prefill time, from a request's first step to its first token or its embedding.
    pub prefill: Histogram,
    /// Decode time, from a request's first token to its end.
    pub decode: Histogram,
}

/// Draft tokens of one source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Draft tokens that were run.
    pub drafted: u64,
    /// Draft tokens that were accepted.
    pub accepted: u64,
}

impl Default for EngineStats {
    fn default() -> Self {
        let request = || Histogram::new(REQUEST);
        Self {
            running: 0,
            waiting: 0,
            waiting_tokens: 0,
            kv_used_pages: 0,
            kv_idle_pages: 0,
            kv_total_pages: 0,
            prompt_tokens: 0,
            generated_tokens: 0,
            prefix_queries: 0,
            prefix_hits: 0,
            prefix_evictions: 0,
            states_used: 0,
            states_total: 0,
            prefix_states: 0,
            prefix_states_stored: 0,
            prefix_state_evictions: 0,
            prefix_stateless: 0,
            preemptions: 0,
            panics: 0,
            finished: FinishCounts::default(),
            draft_tokens: 0,
            accepted_tokens: 0,
            ahead_rows: 0,
            ahead_wasted: 0,
            drafts_by_lookup: DraftCounts::default(),
            drafts_by_model: DraftCounts::default(),
            drafts_by_head: DraftCounts::default(),
            ttft: Histogram::new(TTFT),
            inter_token: Histogram::new(INTER_TOKEN),
            e2e: request(),
            queue: request(),
            prefill: request(),
            decode: request(),
        }
    }
}

/// The statistics of a running engine. Its lock is not exposed, so it is never held while a row is
/// sampled or a sink is called.
#[derive(Debug, Default)]
pub(super) struct Counters(Mutex<EngineStats>);

impl Counters {
    /// Updates the statistics; `change` must do nothing else.
    pub(super) fn update<T>(&self, change: impl FnOnce(&mut EngineStats) -> T) -> T {
        // The statistics stay valid even if a holder of the lock panicked.
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A copy of the statistics.
    pub(super) fn read(&self) -> EngineStats {
        self.update(|stats| stats.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_into_the_first_bucket_that_holds_them() {
        let mut histogram = Histogram::new(&[0.5, 1.0]);
        for ms in [100, 500, 501, 1000, 5000] {
            histogram.record(Duration::from_millis(ms));
        }
        assert_eq!(histogram.counts, [2, 2, 1]);
        assert_eq!(histogram.count(), 5);
        assert!((histogram.sum - 7.101).abs() < 1e-9);
    }
}
