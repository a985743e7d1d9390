//! Steps that are launched behind the one that runs, where the device finds the next tokens by itself.
//!
//! The device is then never idle between two steps of answers. What the host reads later decides: an answer that has
//! ended has a row too many, and one whose token is another than the device took runs again with the right one.

use super::job::{Key, Run, Stage};
use super::late::Lates;
use super::schedule::{Planned, StepPlan, Wanted};
use super::stats::Counters;
use crate::Error;
use crate::backend::Role;
use crate::run::Runner;

/// A run's row in the step that was launched ahead.
#[derive(Debug)]
struct Row {
    key: Key,
    run: usize,
    /// The number of its chunk in the step before, and in this one.
    source: usize,
    chunk: usize,
}

/// The step that was launched ahead, if there is one.
#[derive(Debug)]
pub(super) struct StepAhead {
    /// Whether there is ever one.
    is_on: bool,
    /// Its rows, without those that were given up.
    rows: Vec<Row>,
}

impl StepAhead {
    pub(super) fn new(is_on: bool) -> Self {
        Self { is_on, rows: Vec::new() }
    }

    /// Launches a step behind that of `plan`, which runs, with the next row of every answer that goes on. There is one
    /// where all that runs are answers whose tokens the device finds by itself, and there are pages for it.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn launch(
        &mut self,
        plan: &StepPlan,
        (runs, runner): (&[Run], &mut Runner),
        lates: Option<&Lates>,
        stats: &Counters,
    ) -> Result<(), Error> {
        self.rows.clear();
        if !self.is_on {
            return Ok(());
        }
        let is_foreseen = |planned: &Planned| {
            let run = &runs[planned.run];
            let is_plain = planned.wanted == Wanted::Last && run.chunk.len() == 1 && !run.needs_row;
            is_plain && matches!(&run.stage, Stage::Answer(answer) if answer.is_foreseen())
        };
        let all_are = plan.planned.len() == runs.len() && plan.planned.iter().all(is_foreseen);
        if !all_are || !runner.wants_only_shortlists() {
            return Ok(());
        }
        for &Planned { run: idx, chunk: source, .. } in &plan.planned {
            let run = &runs[idx];
            let Stage::Answer(answer) = &run.stage else { unreachable!("all are answers") };
            let fits = run.done + 2 <= runner.max_seq_len();
            let is_over = lates.is_some_and(|lates| lates.is_over(run.key));
            if fits && answer.remaining() > 1 && !is_over {
                let chunk = self.rows.len();
                self.rows.push(Row { key: run.key, run: idx, source, chunk });
            }
        }
        if self.rows.is_empty() {
            return Ok(());
        }
        let seq =
            |run: usize| runs[run].seq.as_ref().expect("a run that is planned has a sequence");
        let next = self.rows.iter().map(|row| (row.source, seq(row.run)));
        let launched = runner.launch_ahead(plan.chunks(runs), next);
        if launched.is_err() {
            self.rows.clear();
        }
        stats.update(|stats| stats.ahead_rows += self.rows.len() as u64);
        match launched {
            // The answers that end with this step may have the pages.
            Err(Error::Kv(_)) => Ok(()),
            other => other,
        }
    }

    /// Makes the step that was launched ahead the planned one, with those of its runs that still run. Returns whether
    /// there are any.
    pub(super) fn take(
        &mut self,
        plan: &mut StepPlan,
        runs: &mut [Run],
        runner: &mut Runner,
        stats: &Counters,
    ) -> bool {
        if self.rows.is_empty() {
            // All its rows may have been given up.
            runner.discard();
            return false;
        }
        plan.planned.clear();
        let n_rows = self.rows.len();
        for Row { key, chunk, .. } in self.rows.drain(..) {
            let Ok(idx) = runs.binary_search_by_key(&key, |run| run.key) else { continue };
            let run = &mut runs[idx];
            assert_eq!(run.done + 1, run.n_known(), "its last token is in the step");
            let Some(&last) = run.generated().last() else { unreachable!("it has generated") };
            run.chunk.clear();
            run.chunk.push(last);
            run.n_drafts = 0;
            let (role, wanted) = (Role::Generated, Wanted::Last);
            plan.planned.push(Planned { run: idx, chunk, role, wanted });
        }
        let n_wasted = n_rows - plan.planned.len();
        stats.update(|stats| stats.ahead_wasted += n_wasted as u64);
        if plan.planned.is_empty() {
            runner.discard();
            return false;
        }
        runner.advance();
        true
    }

    /// Gives up the row of a run.
    pub(super) fn give_up(&mut self, run: &Run, runner: &mut Runner, stats: &Counters) {
        let n_rows = self.rows.len();
        self.rows.retain(|row| row.key != run.key);
        stats.update(|stats| stats.ahead_wasted += (n_rows - self.rows.len()) as u64);
        run.seq.iter().for_each(|seq| runner.give_up_ahead(seq));
    }

    /// Forgets the step: the runner has been reset.
    pub(super) fn forget(&mut self, stats: &Counters) {
        stats.update(|stats| stats.ahead_wasted += self.rows.len() as u64);
        self.rows.clear();
    }
}
