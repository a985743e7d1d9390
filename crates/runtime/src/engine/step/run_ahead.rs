//! Run-ahead: launches the next step before the current one is collected, if the device can sample
//! the tokens itself.
//!
//! The device is then never idle between two decode steps. The host still decides: an answer that has
//! ended wasted a row, and one whose token differs from the device's runs again with the right one.

use super::pending::PendingOutput;
use super::plan::{PlannedChunk, StepPlan};
use crate::Error;
use crate::engine::sequence::{SeqKey, Sequence, Stage};
use crate::engine::stats::Counters;
use crate::run::{Outputs, Runner};
use realizar_backends::{Phase, TopKRequest};
use realizar_text::sampling::NextToken;

/// A sequence's decode row in the step that was launched ahead.
#[derive(Debug)]
struct Row {
    key: SeqKey,
    seq_idx: usize,
    /// The index of its chunk in the batch before this step.
    source: usize,
    /// The index of its chunk in the batch of this step.
    batch_idx: usize,
    token: NextToken,
}

/// The step that was launched ahead, if there is one.
#[derive(Debug)]
pub(super) struct RunAhead {
    is_enabled: bool,
    /// Its rows, without those that were discarded.
    rows: Vec<Row>,
    /// The number of rows that it was launched with.
    n_launched: usize,
}

impl RunAhead {
    pub(super) fn new(is_enabled: bool) -> Self {
        Self { is_enabled, rows: Vec::new(), n_launched: 0 }
    }

    /// Launches a step after the running one, which is `plan`, with the next row of every sequence
    /// that continues. Does nothing unless all running sequences decode with tokens that the device
    /// samples, and there are pages.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn launch(
        &mut self,
        plan: &StepPlan,
        seqs: &[Sequence],
        runner: &mut Runner,
        pending: Option<&PendingOutput>,
        stats: &Counters,
    ) -> Result<(), Error> {
        self.rows.clear();
        if !self.is_enabled || self.fill(plan, seqs, runner, pending).is_none() {
            self.rows.clear();
        }
        if self.rows.is_empty() {
            return Ok(());
        }
        let next = self.rows.iter().map(|row| {
            let kv = seqs[row.seq_idx].kv.as_ref().expect("a scheduled sequence has pages");
            (row.source, kv, row.token)
        });
        let launched = runner.launch_ahead(plan.to_chunks(seqs), next);
        if launched.is_err() {
            self.rows.clear();
        }
        self.n_launched = self.rows.len();
        stats.update(|stats| stats.ahead_rows += self.n_launched as u64);
        match launched {
            // Sequences that end with the running step may free the pages.
            Err(Error::Kv(_)) => Ok(()),
            other => other,
        }
    }

    /// Lists the rows; `None` if some of the plan is not a decode row that continues as predicted.
    fn fill(
        &mut self,
        plan: &StepPlan,
        seqs: &[Sequence],
        runner: &mut Runner,
        pending: Option<&PendingOutput>,
    ) -> Option<()> {
        let limits = runner.wants()?.sample_limits();
        if plan.chunks.len() < seqs.len() || !runner.wants_only_shortlists() {
            return None;
        }
        for &PlannedChunk { seq_idx, batch_idx: source, outputs, .. } in &plan.chunks {
            let seq = &seqs[seq_idx];
            let is_plain =
                outputs == Outputs::Last && seq.scheduled.len() == 1 && seq.run_ahead_pause == 0;
            let Stage::Answer(answer) = &seq.stage else { return None };
            let token = answer.device_sampling(limits).filter(|_| is_plain)?;
            let fits = seq.n_computed + 2 <= runner.max_seq_len();
            let is_finished = pending.is_some_and(|pending| pending.is_finished(seq.key));
            if fits && answer.remaining() > 1 && !is_finished {
                let batch_idx = self.rows.len();
                self.rows.push(Row { key: seq.key, seq_idx, source, batch_idx, token });
            }
        }
        Some(())
    }

    /// Makes the step that was launched ahead the current one: fills `plan` with the rows whose
    /// sequences still run. Returns false, and discards the step, if there are none.
    pub(super) fn take(
        &mut self,
        plan: &mut StepPlan,
        seqs: &mut [Sequence],
        runner: &mut Runner,
        stats: &Counters,
    ) -> bool {
        if self.rows.is_empty() {
            // There may be a step all of whose rows were discarded.
            runner.discard();
            return false;
        }
        plan.chunks.clear();
        let n_rows = self.rows.len();
        for Row { key, batch_idx, .. } in self.rows.drain(..) {
            let Ok(seq_idx) = seqs.binary_search_by_key(&key, |seq| seq.key) else { continue };
            let seq = &mut seqs[seq_idx];
            assert_eq!(seq.n_computed + 1, seq.n_tokens(), "its last token is in the step");
            let Some(&last) = seq.generated().last() else { unreachable!("it has generated") };
            seq.scheduled.clear();
            seq.scheduled.push(last);
            seq.n_drafts = 0;
            let (phase, outputs) = (Phase::Decode, Outputs::Last);
            plan.chunks.push(PlannedChunk { seq_idx, batch_idx, phase, outputs });
        }
        let n_wasted = n_rows - plan.chunks.len();
        stats.update(|stats| stats.ahead_wasted += n_wasted as u64);
        if plan.chunks.is_empty() {
            runner.discard();
            return false;
        }
        runner.advance();
        self.minimize_discarded(plan, runner);
        true
    }

    /// Requests a single token of each discarded row, since otherwise all its logits would be copied
    /// to the host.
    fn minimize_discarded(&self, plan: &StepPlan, runner: &mut Runner) {
        let best = TopKRequest::best(runner.vocab_size());
        let Some(mut wants) = runner.wants() else { return };
        let mut kept = plan.chunks.iter().map(|chunk| chunk.batch_idx).peekable();
        for batch_idx in 0..self.n_launched {
            if kept.next_if_eq(&batch_idx).is_none() {
                wants.shorten((batch_idx, 0), best, None, |_| ());
            }
        }
    }

    /// Discards the row of a sequence.
    pub(super) fn discard(&mut self, seq: &Sequence, runner: &mut Runner, stats: &Counters) {
        let n_rows = self.rows.len();
        self.rows.retain(|row| row.key != seq.key);
        stats.update(|stats| stats.ahead_wasted += (n_rows - self.rows.len()) as u64);
        if let Some(kv) = &seq.kv {
            runner.give_up_ahead(kv);
        }
    }

    /// Forgets the step after the runner was reset.
    pub(super) fn forget(&mut self, stats: &Counters) {
        stats.update(|stats| stats.ahead_wasted += self.rows.len() as u64);
        self.rows.clear();
    }
}
