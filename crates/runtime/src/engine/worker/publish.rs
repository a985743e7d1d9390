//! Publishes the engine's state to its observers.

use super::Worker;
use crate::engine::CacheSink;
use crate::engine::job::Run;

impl Worker {
    /// Tells how things stand.
    pub(super) fn publish(&mut self) {
        #[cfg(test)]
        crate::engine::faults::reach(crate::engine::faults::Place::Publish);
        if let Some(CacheSink(tell)) = &self.settings.cache_sink {
            let events = self.runner.take_cache_events();
            if !events.is_empty() {
                tell(events);
            }
        }
        let fullest =
            self.runner.pools().max_by(|a, b| a.utilization().total_cmp(&b.utilization()));
        let (prefix, states) = (self.runner.prefix_stats(), self.runner.state_stats());
        let running = self.n_running();
        let waiting_tokens = self.waiting.values().map(Run::n_known).sum();
        self.shared.stats.update(|stats| {
            (stats.running, stats.waiting_tokens) = (running, waiting_tokens);
            if let Some(pool) = fullest {
                stats.kv_used_pages = pool.used - pool.idle;
                stats.kv_idle_pages = pool.idle;
                stats.kv_total_pages = pool.total;
            }
            stats.prefix_queries = prefix.queried_tokens;
            stats.prefix_hits = prefix.found_tokens;
            stats.prefix_evictions = prefix.evicted;
            if let Some(states) = states {
                stats.states_used = states.used - states.idle;
                stats.states_total = states.total;
            }
            stats.prefix_states = prefix.states;
            stats.prefix_states_stored = prefix.states_stored;
            stats.prefix_state_evictions = prefix.states_evicted;
            stats.prefix_stateless = prefix.stateless_tokens;
        });
    }
}
