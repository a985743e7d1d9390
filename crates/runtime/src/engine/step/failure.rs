//! Requests that end early, failed steps, and recovery from panics.

use super::Core;
use crate::Error;
use crate::engine::active::ActiveRequest;
use crate::engine::sequence::RequestId;
use crate::engine::stats::Counters;
use std::sync::atomic::Ordering;

impl Core {
    /// Why no further step can succeed, if so.
    pub(in crate::engine) fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    /// Drops cancelled requests.
    pub(super) fn drop_cancelled(&mut self) {
        self.finish_all(ActiveRequest::is_cancelled, |request, stats| request.cancel(stats));
    }

    /// Fails every request.
    pub(in crate::engine) fn fail_all(&mut self, error: impl Fn() -> Error) {
        self.finish_all(|_| true, |request, stats| request.fail(error(), stats));
    }

    /// Ends all requests for which `filter` holds, each with its `last` event.
    pub(super) fn finish_all(
        &mut self,
        filter: impl Fn(&ActiveRequest) -> bool,
        last: impl Fn(&mut ActiveRequest, &Counters),
    ) {
        let ids: Vec<RequestId> = self.queue.ids(filter).collect();
        ids.into_iter().for_each(|id| self.finish(id, &last));
    }

    /// Fails a request.
    pub(super) fn fail(&mut self, id: RequestId, error: Error) {
        self.finish(id, |request, stats| request.fail(error, stats));
    }

    fn finish(&mut self, id: RequestId, last: impl FnOnce(&mut ActiveRequest, &Counters)) {
        if let Some(pending) = &mut self.pending {
            pending.forget(id);
        }
        self.queue.finish(id, last);
    }

    /// Continues after a step that failed. When pages run out, preempts the lowest-priority sequence.
    pub(super) fn step_failed(&mut self, error: Error) {
        let n_running = self.queue.running.len();
        self.remove_finished();
        match error {
            // A sequence that has ended meanwhile has freed its pages.
            Error::Kv(_) if self.queue.running.len() < n_running => {}
            Error::Kv(_) if n_running > 1 => self.queue.preempt(),
            error if error.has_lost_model() => self.lose(&error.to_string()),
            error => {
                let reason = error.to_string();
                for id in std::mem::take(&mut self.at_risk) {
                    self.fail(id, Error::Step(reason.clone()));
                }
            }
        }
    }

    /// Ends every request, and then the engine: no further step can succeed.
    fn lose(&mut self, reason: &str) {
        tracing::error!("the engine has ended: {reason}");
        self.shared.closed.store(true, Ordering::Relaxed);
        self.fail_all(|| Error::Step(reason.to_owned()));
        self.lost = Some(reason.to_owned());
    }

    /// Continues after a panic: ends the requests at risk, takes back all pages, and recomputes the
    /// other requests from their tokens. Nothing that may be half changed is used again.
    pub(in crate::engine) fn recover(&mut self, panic: &str) {
        tracing::error!("a step panicked: {panic}");
        self.shared.stats.update(|stats| stats.panics += 1);
        self.masks.discard();
        self.run_ahead.forget(&self.shared.stats);
        self.queue.free_running();
        self.runner.reset();
        let mut ended = std::mem::take(&mut self.at_risk);
        if ended.is_empty() {
            // The panic belongs to no known request, and would come again if none were ended.
            ended.extend(self.queue.ids(|_| true));
        }
        for id in ended {
            let text = format!("the step panicked, which is a bug in the engine: {panic}");
            self.fail(id, Error::Step(text));
        }
        self.queue.requeue_running();
        self.remove_finished();
        self.check();
    }

    /// Asserts the invariants between two steps.
    pub(in crate::engine) fn check(&mut self) {
        let pending = self.pending.as_ref();
        let has_pending = |id| pending.is_some_and(|pending| pending.requests().any(|of| of == id));
        self.queue.check(&mut self.runner, has_pending);
    }
}
