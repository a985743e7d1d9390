//! `GET /metrics/history`: what the last hour was like, for the page's dashboard.
//!
//! A running server looks at its engines every few seconds and keeps the differences. Memory is
//! bounded: a fixed number of samples for each model, and no model that was not loaded within the
//! hour.

use crate::ids;
use crate::state::AppState;
use axum::Json;
use axum::extract::State;
use realizar_runtime::engine::{EngineStats, Histogram};
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// The time between two samples.
const INTERVAL: Duration = Duration::from_secs(5);
/// How long samples are kept, in seconds.
const KEPT: u64 = 3600;
/// The maximum number of samples of a model.
const SAMPLES: usize = (KEPT / INTERVAL.as_secs()) as usize;

/// The samples of all models.
#[derive(Debug, Default)]
pub(crate) struct History(Mutex<Vec<ModelHistory>>);

#[derive(Debug, Default)]
struct ModelHistory {
    model: String,
    /// The counters at the latest sample.
    before: Counters,
    samples: VecDeque<Sample>, // oldest first
}

/// Counters of an engine, which begin at zero with it.
#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    prompt_tokens: u64,
    generated_tokens: u64,
    ttft: Durations,
    inter_token: Durations,
}

/// How many durations there were, and their sum in seconds.
#[derive(Debug, Clone, Copy, Default)]
struct Durations {
    count: u64,
    sum: f64,
}

/// One interval of a model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Sample {
    /// Its end, in seconds since 1970.
    time: u64,
    /// Tokens of prompts that arrived in it.
    prompt_tokens: u64,
    /// Tokens that were generated in it.
    generated_tokens: u64,
    /// Requests that were run at its end.
    running: usize,
    /// Waiting requests at its end.
    waiting: usize,
    /// The used part of the key-value cache at its end; 1 is all of it.
    kv_used: f64,
    /// The mean time to the first token in it, in seconds.
    ttft: Option<f64>,
    /// The mean time between two tokens in it, in seconds.
    inter_token: Option<f64>,
}

impl From<&Histogram> for Durations {
    fn from(histogram: &Histogram) -> Self {
        Self { count: histogram.count(), sum: histogram.sum }
    }
}

impl From<&EngineStats> for Counters {
    fn from(stats: &EngineStats) -> Self {
        Self {
            prompt_tokens: stats.prompt_tokens,
            generated_tokens: stats.generated_tokens,
            ttft: (&stats.ttft).into(),
            inter_token: (&stats.inter_token).into(),
        }
    }
}

impl Durations {
    /// The mean of the durations since `before`.
    fn mean_since(self, before: Self) -> Option<f64> {
        let count = self.count.checked_sub(before.count).filter(|count| *count > 0)?;
        Some((self.sum - before.sum).max(0.0) / count as f64)
    }
}

impl ModelHistory {
    fn add(&mut self, time: u64, stats: &EngineStats) {
        let now = Counters::from(stats);
        let is_new_engine = now.prompt_tokens < self.before.prompt_tokens
            || now.generated_tokens < self.before.generated_tokens
            || now.ttft.count < self.before.ttft.count;
        let before = if is_new_engine { Counters::default() } else { self.before };
        self.before = now;
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample {
            time,
            prompt_tokens: now.prompt_tokens - before.prompt_tokens,
            generated_tokens: now.generated_tokens - before.generated_tokens,
            running: stats.running,
            waiting: stats.waiting,
            kv_used: stats.kv_used_pages as f64 / stats.kv_total_pages.max(1) as f64,
            ttft: now.ttft.mean_since(before.ttft),
            inter_token: now.inter_token.mean_since(before.inter_token),
        });
    }
}

impl History {
    fn lock(&self) -> MutexGuard<'_, Vec<ModelHistory>> {
        // A sample is added whole or not at all.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a sample of each model that is loaded, and forgets what is older than an hour.
    fn add<'a>(&self, time: u64, models: impl IntoIterator<Item = (&'a str, EngineStats)>) {
        let mut all = self.lock();
        for (model, stats) in models {
            let at = all.iter().position(|own| own.model == model).unwrap_or_else(|| {
                all.push(ModelHistory { model: model.to_owned(), ..ModelHistory::default() });
                all.len() - 1
            });
            all[at].add(time, &stats);
        }
        for own in all.iter_mut() {
            while own.samples.front().is_some_and(|sample| sample.time + KEPT < time) {
                own.samples.pop_front();
            }
        }
        all.retain(|own| !own.samples.is_empty());
    }
}

/// Looks at the engines again and again; it does not end.
pub(crate) async fn keep(state: &AppState) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let models = state.models().all();
        let stats = models.iter().map(|model| (model.name.as_str(), model.engine.stats()));
        state.history().add(ids::unix_seconds(), stats);
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct HistoryBody {
    now: u64,
    interval: u64,
    models: Vec<ModelBody>,
}

#[derive(Debug, Serialize)]
struct ModelBody {
    model: String,
    samples: Vec<Sample>,
}

/// Answers with the samples of the last hour.
pub(crate) async fn get(State(state): State<AppState>) -> Json<HistoryBody> {
    let all = state.history().lock();
    let body = |own: &ModelHistory| ModelBody {
        model: own.model.clone(),
        samples: own.samples.iter().copied().collect(),
    };
    let models = all.iter().map(body).collect();
    Json(HistoryBody { now: ids::unix_seconds(), interval: INTERVAL.as_secs(), models })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(prompt_tokens: u64, generated_tokens: u64, ttft: &[f64]) -> EngineStats {
        let mut stats = EngineStats { prompt_tokens, generated_tokens, ..EngineStats::default() };
        stats.ttft.counts[0] = ttft.len() as u64;
        stats.ttft.sum = ttft.iter().sum();
        (stats.running, stats.waiting) = (2, 1);
        (stats.kv_used_pages, stats.kv_total_pages) = (3, 12);
        stats
    }

    #[test]
    fn samples_are_differences_of_counters() {
        let history = History::default();
        history.add(100, [("a", stats(7, 20, &[0.5]))]);
        history.add(105, [("a", stats(10, 60, &[0.5, 1.0, 2.0]))]);
        history.add(110, [("a", stats(10, 60, &[0.5, 1.0, 2.0])), ("b", stats(1, 2, &[]))]);
        // A new engine of the same name counts from zero.
        history.add(115, [("a", stats(4, 5, &[0.25]))]);
        let all = history.lock();
        let sample = |time, prompt_tokens, generated_tokens, ttft| Sample {
            time,
            prompt_tokens,
            generated_tokens,
            running: 2,
            waiting: 1,
            kv_used: 0.25,
            ttft,
            inter_token: None,
        };
        let of_a = [
            sample(100, 7, 20, Some(0.5)),
            sample(105, 3, 40, Some(1.5)),
            sample(110, 0, 0, None),
            sample(115, 4, 5, Some(0.25)),
        ];
        assert_eq!(all.iter().map(|own| own.model.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(all[0].samples, of_a);
        assert_eq!(all[1].samples, [sample(110, 1, 2, None)]);
    }

    #[test]
    fn an_hour_is_kept() {
        let history = History::default();
        history.add(0, [("gone", stats(1, 1, &[]))]);
        for time in (0..2 * KEPT).step_by(INTERVAL.as_secs() as usize) {
            history.add(time, [("a", stats(time, 0, &[]))]);
        }
        // Clocks are set: more samples than an hour has do not pile up.
        for _ in 0..SAMPLES {
            history.add(2 * KEPT, [("a", stats(9999, 0, &[]))]);
        }
        let all = history.lock();
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].model.as_str(), all[0].samples.len()), ("a", SAMPLES));
        assert!(all[0].samples.iter().all(|sample| sample.time >= KEPT));
    }
}
