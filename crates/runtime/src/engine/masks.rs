//! What grammars allow next, computed while the model runs.
//!
//! A mask depends on the tokens that were chosen so far and not on the logits, so it is ready when
//! they are. Constraints leave their answers for the time of a step, and come back with the mask.

use super::job::{Run, Stage};
use super::schedule::{Planned, Wanted};
use crate::constrain::{Constraint, TokenMask};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A constraint that is worked on.
struct Task {
    run: usize,
    answer: usize,
    constraint: Constraint,
    mask: Option<TokenMask>,
}

/// The constraints of a step.
#[derive(Default)]
pub(super) struct Masks(Vec<Task>);

impl Masks {
    /// Takes the constraints of the answers that get logits in this step.
    pub(super) fn take(running: &mut [Run], planned: &[Planned]) -> Self {
        let mut tasks = Vec::new();
        for planned in planned.iter().filter(|planned| planned.wanted != Wanted::None) {
            let run = planned.run;
            let mut take = |(answer, state): (usize, &mut crate::answer::Answer)| {
                let constraint = state.take_constraint();
                tasks.extend(constraint.map(|constraint| Task {
                    run,
                    answer,
                    constraint,
                    mask: None,
                }));
            };
            match &mut running[run].stage {
                Stage::Prompt { answers, .. } => answers.iter_mut().enumerate().for_each(take),
                Stage::Answer(answer) => take((0, &mut **answer)),
                Stage::Embedding(_) => {}
            }
        }
        Self(tasks)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Computes the masks. One that fails is left out: it fails again, with its error, when its
    /// answer asks for it.
    pub(super) fn compute(&mut self) {
        for Task { constraint, mask, .. } in &mut self.0 {
            let computed = catch_unwind(AssertUnwindSafe(|| constraint.compute_mask().ok()));
            *mask = computed.unwrap_or_else(|_| {
                tracing::error!("a grammar's mask panicked");
                None
            });
        }
    }

    /// Gives the constraints back to their answers.
    pub(super) fn put_back(self, running: &mut [Run]) {
        for Task { run, answer, constraint, mask } in self.0 {
            match &mut running[run].stage {
                Stage::Prompt { answers, .. } => answers[answer].put_constraint(constraint, mask),
                Stage::Answer(state) => state.put_constraint(constraint, mask),
                Stage::Embedding(_) => unreachable!("a text that is embedded has no grammar"),
            }
        }
    }
}
