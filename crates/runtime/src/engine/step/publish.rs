//! Publishes the engine's state to its observers.

use super::Core;
use crate::engine::CacheSink;

impl Core {
    /// Sends the changes of the prefix cache to their subscriber, and updates the statistics.
    pub(in crate::engine) fn publish(&mut self) {
        let running = self.queue.n_running();
        let waiting_tokens = self.queue.waiting_tokens();
        tracing::trace!(running, waiting_tokens, "publishing the state");
        if let Some(CacheSink(send)) = &self.cache_sink {
            let events = self.runner.take_cache_events();
            if !events.is_empty() {
                send(events);
            }
        }
        let fullest =
            self.runner.pools().max_by(|a, b| a.utilization().total_cmp(&b.utilization()));
        let (prefix, states) = (self.runner.prefix_stats(), self.runner.state_stats());
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
