//! Drafting before a step, and what is kept of a step for it.

use super::Worker;
use crate::base::panics;

impl Worker {
    /// Drafts tokens. No answer depends on them, so a draft model that fails costs only time.
    pub(super) fn draft(&mut self) {
        if let Some(head) = &mut self.head
            && let Err(error) = head.guess(&mut self.runner, &mut self.running)
        {
            tracing::error!(
                "drafting with the multi-token prediction layer failed and is disabled: {error}"
            );
            self.head = None;
            self.running.iter_mut().for_each(|run| run.guesses.clear());
        }
        let Some(draft) = &mut self.draft else { return };
        let failed = match panics::caught(|| draft.guess(&mut self.running)) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(panic) => panic,
        };
        tracing::error!("the draft model failed and is disabled: {failed}");
        self.draft = None;
        self.running.iter_mut().for_each(|run| run.guesses.clear());
    }

    /// Keeps the hidden states that drafting continues from.
    pub(super) fn keep_hidden(&mut self) {
        if self.head.is_none() {
            return;
        }
        for planned in &self.plan.planned {
            let run = &mut self.running[planned.run];
            if let Some(row) = run.last_row.take() {
                // Rows after it were drafted for nothing.
                let n_rejected = run.n_drafts.saturating_sub(row);
                run.hidden.take(run.done - n_rejected, self.runner.hidden(planned.chunk, row));
            }
        }
    }
}
