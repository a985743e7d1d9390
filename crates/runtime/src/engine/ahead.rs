//! Steps that are launched after the one that runs, where the device samples the next tokens itself.
//!
//! The device is then never idle between two steps of answers. What the host reads later decides: an answer that has
//! ended has a row too many, and one whose token is another than the device took runs again with the right one.

use super::job::{Key, Run, Stage};
use super::late::Lates;
use super::schedule::{Planned, StepPlan, Wanted};
use super::stats::Counters;
use crate::Error;
use crate::backend::{Few, Role};
use crate::run::Runner;
use crate::text::sampling::NextToken;

/// A run's row in the step that was launched ahead.
#[derive(Debug)]
struct Row {
    key: Key,
    run: usize,
    /// The number of its chunk in the step before, and in this one.
    source: usize,
    chunk: usize,
    token: NextToken,
}

/// The step that was launched ahead, if there is one.
#[derive(Debug)]
pub(super) struct StepAhead {
    /// Whether there is ever one.
    is_on: bool,
    /// Its rows, without those that were discarded.
    rows: Vec<Row>,
    /// Rows that it was launched with.
    n_launched: usize,
}

impl StepAhead {
    pub(super) fn new(is_on: bool) -> Self {
        Self { is_on, rows: Vec::new(), n_launched: 0 }
    }

    /// Launches a step after that of `plan`, which runs, with the next row of every answer that continues. There is one
    /// where all that runs are answers whose tokens the device samples itself, and there are pages for it.
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
        if !self.is_on || self.fill(plan, runs, runner, lates).is_none() {
            self.rows.clear();
        }
        if self.rows.is_empty() {
            return Ok(());
        }
        let seq =
            |run: usize| runs[run].seq.as_ref().expect("a run that is planned has a sequence");
        let next = self.rows.iter().map(|row| (row.source, seq(row.run), row.token));
        let launched = runner.launch_ahead(plan.chunks(runs), next);
        if launched.is_err() {
            self.rows.clear();
        }
        self.n_launched = self.rows.len();
        stats.update(|stats| stats.ahead_rows += self.n_launched as u64);
        match launched {
            // The answers that end with this step may have the pages.
            Err(Error::Kv(_)) => Ok(()),
            other => other,
        }
    }

    /// Lists its rows; `None` if something of the plan is not an answer that continues as predicted.
    fn fill(
        &mut self,
        plan: &StepPlan,
        runs: &[Run],
        runner: &mut Runner,
        lates: Option<&Lates>,
    ) -> Option<()> {
        let offer = runner.wants()?.offer();
        if plan.planned.len() < runs.len() || !runner.wants_only_shortlists() {
            return None;
        }
        for &Planned { run: idx, chunk: source, wanted, .. } in &plan.planned {
            let run = &runs[idx];
            let is_plain = wanted == Wanted::Last && run.chunk.len() == 1 && run.n_wary == 0;
            let Stage::Answer(answer) = &run.stage else { return None };
            let token = answer.foreseen(offer).filter(|_| is_plain)?;
            let fits = run.done + 2 <= runner.max_seq_len();
            let is_over = lates.is_some_and(|lates| lates.is_over(run.key));
            if fits && answer.remaining() > 1 && !is_over {
                let chunk = self.rows.len();
                self.rows.push(Row { key: run.key, run: idx, source, chunk, token });
            }
        }
        Some(())
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
            // All its rows may have been discarded.
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
        self.want_little(plan, runner);
        true
    }

    /// Requests next to nothing of the discarded rows: whole rows would be copied to the host.
    fn want_little(&self, plan: &StepPlan, runner: &mut Runner) {
        let few = Few::best(runner.vocab_size());
        let Some(mut wants) = runner.wants() else { return };
        let mut planned = plan.planned.iter().map(|planned| planned.chunk).peekable();
        for chunk in 0..self.n_launched {
            if planned.next_if_eq(&chunk).is_none() {
                wants.shorten((chunk, 0), few, None, |_| ());
            }
        }
    }

    /// Discards the row of a run.
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
