//! What the engine counts, for monitoring. The lock is held only for single changes.
//!
//! The bounds of the histograms are those that dashboards for inference servers are made for.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Bounds of times to the first token, in seconds.
const TTFT: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];

/// Bounds of times between tokens, in seconds.
const INTER_TOKEN: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];

/// Bounds of times of requests and of their phases, in seconds.
const REQUEST: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];

/// A histogram of durations.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    /// The upper bounds of the buckets, in seconds; a last bucket has none.
    pub bounds: &'static [f64],
    /// How many durations fell into each bucket.
    pub counts: Vec<u64>, // [bounds.len() + 1]
    /// The sum of all durations, in seconds.
    pub sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// How many durations there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(super) fn record(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        self.counts[self.bounds.partition_point(|&bound| bound < seconds)] += 1;
        self.sum += seconds;
    }
}

/// How answers and embeddings ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FinishCounts {
    /// The model ended them, or a stop text did.
    pub stop: u64,
    /// They reached their limit of tokens, or the end of the context.
    pub length: u64,
    /// They were embeddings, and are complete.
    pub embedding: u64,
    /// The client went away.
    pub cancelled: u64,
    /// An error ended them.
    pub failed: u64,
}

/// The state of an engine and what it did since it was started.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineStats {
    /// Requests that are being worked on.
    pub running: usize,
    /// Waiting requests.
    pub waiting: usize,
    /// Tokens of those that waited when the last step ended: of prompts, and of answers that lost
    /// their pages.
    pub waiting_tokens: usize,
    /// Pages of the key-value cache that requests hold, in the group of layers that is fullest.
    pub kv_used_pages: usize,
    /// Pages of that group that are kept for prompts to come, and evicted when they are needed.
    pub kv_idle_pages: usize,
    /// All pages of that group.
    pub kv_total_pages: usize,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Tokens that were generated.
    pub generated_tokens: u64,
    /// Prompt tokens that were looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Of these, tokens that were found.
    pub prefix_hits: u64,
    /// Pages of tokens evicted from the prefix cache.
    pub prefix_evictions: u64,
    /// Recurrent states that requests hold; all counts of states are 0 for models without.
    pub states_used: usize,
    /// Recurrent states that there is room for.
    pub states_total: usize,
    /// Recurrent states that the prefix cache holds.
    pub prefix_states: usize,
    /// Recurrent states that were put into the prefix cache.
    pub prefix_states_stored: u64,
    /// Recurrent states evicted from the prefix cache.
    pub prefix_state_evictions: u64,
    /// Prompt tokens whose pages were found in the prefix cache, but no state to continue from.
    pub prefix_stateless: u64,
    /// Answers that were preempted and recomputed.
    pub preemptions: u64,
    /// Steps that panicked; each ended the requests that were in it.
    pub panics: u64,
    /// How answers ended.
    pub finished: FinishCounts,
    /// Draft tokens that were run.
    pub draft_tokens: u64,
    /// Of these, tokens that the model then chose.
    pub accepted_tokens: u64,
    /// Decode rows that were launched before the step before them was collected.
    pub ahead_rows: u64,
    /// Of these, rows that were discarded: their answers had ended, or the token was another one.
    pub ahead_wasted: u64,
    /// Both counts of what prompt lookup drafted.
    pub drafts_by_lookup: DraftCounts,
    /// Those of what a draft model drafted.
    pub drafts_by_model: DraftCounts,
    /// Those of what the model's own layer for multi-token prediction drafted.
    pub drafts_by_head: DraftCounts,
    /// From a request's arrival to its first token.
    pub ttft: Histogram,
    /// From one token of an answer to the next.
    pub inter_token: Histogram,
    /// From a request's arrival to its end.
    pub e2e: Histogram,
    /// From a request's arrival to its first step.
    pub queue: Histogram,
    /// From a request's first step to its first token, or to its embedding.
    pub prefill: Histogram,
    /// From a request's first token to its end.
    pub decode: Histogram,
}

/// Draft tokens of one source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Tokens that were drafted and run.
    pub drafted: u64,
    /// Of these, tokens that the model then chose.
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

/// The statistics of a running engine. The lock is not exposed, so no caller can hold it while a
/// row is sampled or a sink is called.
#[derive(Debug, Default)]
pub(super) struct Counters(Mutex<EngineStats>);

impl Counters {
    /// Changes the statistics; `change` does nothing else.
    pub(super) fn update<T>(&self, change: impl FnOnce(&mut EngineStats) -> T) -> T {
        // Counters stay valid even if a holder of the lock panicked.
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The statistics as they are now.
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
