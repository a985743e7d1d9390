//! Speculative decoding: draft tokens are proposed before a step and verified in it.
//!
//! Draft tokens run as decode rows after a sequence's last token. Each row is sampled as usual, and
//! the first one whose token differs from the draft rejects the rest, so answers do not depend on
//! drafting. There are three sources: [prompt lookup](lookup), which the scheduler asks where the
//! others propose nothing, and a [draft model](draft_model) or the model's own [heads].

pub(super) mod draft_model;
pub(super) mod heads;
pub(super) mod lookup;

use super::sequence::Sequence;
use super::stats::{Counters, DraftCounts, EngineStats};
use super::step::StepPlan;
use crate::run::Runner;
use draft_model::DraftModel;
use heads::{Acceptance, Heads, Hidden};
use lookup::Lookup;
use realizar_base::panics;

/// The source of a sequence's draft tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum DraftSource {
    #[default]
    Lookup,
    Model,
    Heads,
}

/// What a sequence keeps for drafting.
#[derive(Debug, Default)]
pub(super) struct DraftState {
    /// Tokens that a draft model or the heads propose for the next step.
    pub(super) proposed: Vec<u32>,
    /// The source of [`Self::proposed`].
    pub(super) proposed_by: DraftSource,
    /// The source of the draft tokens that are scheduled.
    pub(super) scheduled_by: DraftSource,
    pub(super) lookup: Lookup,
    /// How many of the heads' draft tokens were accepted lately.
    acceptance: Acceptance,
    /// The hidden state that the heads continue from.
    hidden: Hidden,
    /// The last accepted output row of the step that was just read.
    pub(super) accepted_row: Option<usize>,
}

impl DraftState {
    /// The state of another answer to the same prompt.
    pub(super) fn fork(&self) -> Self {
        Self { hidden: self.hidden.clone(), ..Self::default() }
    }

    /// Notes that `n_accepted` of the `n_drafts` scheduled draft tokens were accepted, if there were
    /// any.
    pub(super) fn judge(&mut self, n_drafts: usize, n_accepted: usize) {
        match self.scheduled_by {
            _ if n_drafts == 0 => {}
            DraftSource::Lookup => self.lookup.judge(n_drafts, n_accepted),
            DraftSource::Heads => self.acceptance.judge(n_drafts, n_accepted),
            DraftSource::Model => {}
        }
    }

    /// Counts draft tokens that were run.
    pub(super) fn count_drafted(&self, n_drafts: usize, stats: &Counters) {
        if n_drafts > 0 {
            stats.update(|stats| {
                stats.draft_tokens += n_drafts as u64;
                counts(stats, self.scheduled_by).drafted += n_drafts as u64;
            });
        }
    }

    /// Counts a draft token that was accepted.
    pub(super) fn count_accepted(&self, stats: &Counters) {
        stats.update(|stats| {
            stats.accepted_tokens += 1;
            counts(stats, self.scheduled_by).accepted += 1;
        });
    }
}

fn counts(stats: &mut EngineStats, source: DraftSource) -> &mut DraftCounts {
    match source {
        DraftSource::Lookup => &mut stats.drafts_by_lookup,
        DraftSource::Model => &mut stats.drafts_by_model,
        DraftSource::Heads => &mut stats.drafts_by_head,
    }
}

/// A model that drafts for all sequences before a step.
pub(super) enum Drafter {
    Model(Box<DraftModel>),
    Heads(Heads),
}

/// Proposes draft tokens with a [`Drafter`], until that fails.
pub(super) struct Speculator {
    drafter: Option<Drafter>,
}

impl Speculator {
    pub(super) fn new(drafter: Option<Drafter>) -> Self {
        Self { drafter }
    }

    /// Proposes draft tokens for the sequences that are at their last token. A drafter that fails or
    /// panics is dropped: no answer depends on it.
    pub(super) fn propose(&mut self, seqs: &mut [Sequence], runner: &mut Runner) {
        let failure = match &mut self.drafter {
            None => return,
            Some(Drafter::Heads(heads)) => {
                let Err(error) = heads.propose(runner, seqs) else { return };
                format!(
                    "drafting with the multi-token prediction layer failed and is disabled: {error}"
                )
            }
            Some(Drafter::Model(model)) => {
                let reason = match panics::caught(|| model.propose(seqs)) {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => error.to_string(),
                    Err(panic) => panic,
                };
                format!("the draft model failed and is disabled: {reason}")
            }
        };
        tracing::error!("{failure}");
        self.drafter = None;
        seqs.iter_mut().for_each(|seq| seq.draft.proposed.clear());
    }

    /// Keeps the hidden states that the heads continue from, after a step's output was read.
    pub(super) fn keep_hidden(&self, plan: &StepPlan, seqs: &mut [Sequence], runner: &Runner) {
        if !matches!(self.drafter, Some(Drafter::Heads(_))) {
            return;
        }
        for chunk in &plan.chunks {
            let seq = &mut seqs[chunk.seq_idx];
            if let Some(row) = seq.draft.accepted_row.take() {
                // Rows after it hold rejected draft tokens.
                let n_rejected = seq.n_drafts.saturating_sub(row);
                let len = seq.n_computed - n_rejected;
                seq.draft.hidden.set(len, runner.hidden(chunk.batch_idx, row));
            }
        }
    }
}
