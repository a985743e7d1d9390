//! A step that is launched after one that is not collected yet, with the tokens that the device takes from the
//! shortlists of that one.
//!
//! The host finds out later which tokens these were. It compares them with its own choices, and a row that began with
//! another token, or whose sequence has ended, is discarded: its sequence is as if it had not been in the step.

use super::{LIVES, Runner, note};
use crate::Error;
use crate::run::chunk::{Chunk, Outputs};
use crate::run::seq_id::SeqId;
use realizar_backends::{Batch, Phase};
use realizar_model::graph::plan::RowLimits;
use realizar_text::sampling::NextToken;

/// What stands for a token that the device knows and the host does not.
const LATER: &[u32] = &[0];

/// The step after the one that is launched.
#[derive(Debug)]
pub(super) struct Ahead {
    pub(super) is_launched: bool,
    pub(super) batch: Batch,
    pub(super) first_rows: Vec<usize>,
    /// Its sequences.
    pub(super) launched: Vec<usize>,
    /// Of its rows, the output rows of the step before that give the tokens, ascending, and how.
    pub(super) sources: Vec<(usize, NextToken)>,
}

impl Ahead {
    pub(super) fn with_capacity(limits: RowLimits, n_groups: usize) -> Self {
        let n = limits.tokens.min(limits.outputs);
        Self {
            is_launched: false,
            batch: Batch::with_capacity(n, n_groups),
            first_rows: Vec::with_capacity(n),
            launched: Vec::with_capacity(n),
            sources: Vec::with_capacity(n),
        }
    }
}

impl Runner {
    /// Whether a step can be launched after one that is not collected yet.
    pub(crate) fn runs_ahead(&mut self) -> bool {
        self.executable.as_async().is_some_and(|beside| beside.runs_ahead())
    }

    /// Whether shortlists are wanted of all output rows of the step that was launched.
    pub(crate) fn wants_only_shortlists(&self) -> bool {
        self.wants.n_shortlists() == self.wants.n_rows()
    }

    /// Launches a step after the one of `chunks`, which runs and of which shortlists are wanted of all output rows: a
    /// decode row for each of these sequences, with the token that the device chooses by the first output row of the
    /// chunk of that number. [`Self::collect`] of the step that runs comes next, then [`Self::advance`].
    ///
    /// # Errors
    /// If pages run out, and nothing was launched then, or the device fails.
    pub(crate) fn launch_ahead<'c>(
        &mut self,
        chunks: impl Iterator<Item = Chunk<'c>> + Clone,
        next: impl Iterator<Item = (usize, &'c SeqId, NextToken)> + Clone,
    ) -> Result<(), Error> {
        assert!(self.is_launched && !self.ahead.is_launched, "one step runs");
        let Self { seqs, offsets, cache, .. } = self;
        if !std::mem::replace(&mut self.is_noted, true) {
            // Its tokens are known. Where it fails, so does all that is after it.
            note((seqs, offsets), cache, chunks, Ok(()))?;
        }
        self.wants.settle();
        let (phase, outputs) = (Phase::Decode, Outputs::Last);
        let rows =
            next.clone().map(|(_, seq, _)| Chunk { seq, rows: LATER.into(), phase, outputs });
        self.check(rows.clone())?;
        self.grow(rows.clone())?;
        self.swap_ahead();
        self.fill_batch(&rows);
        self.swap_ahead();
        let Self { ahead, first_rows, executable, batch, wants, .. } = self;
        ahead.sources.clear();
        let sources = next.clone().map(|(chunk, _, token)| (first_rows[chunk], token));
        ahead.sources.extend(sources);
        assert!(ahead.sources.is_sorted_by_key(|(row, _)| *row), "chunks come in their order");
        ahead.launched.clear();
        ahead.launched.extend(next.map(|(_, seq, _)| seq.idx));
        ahead.is_launched = true;
        let beside = executable.as_async().expect("steps run beside the host");
        Ok(beside.launch_next(batch, wants, &ahead.batch, &ahead.sources)?)
    }

    fn swap_ahead(&mut self) {
        std::mem::swap(&mut self.batch, &mut self.ahead.batch);
        std::mem::swap(&mut self.first_rows, &mut self.ahead.first_rows);
    }

    /// The step that was launched after the one that was collected is now the one that is launched.
    pub(crate) fn advance(&mut self) {
        assert!(std::mem::take(&mut self.ahead.is_launched), "a step was launched ahead");
        assert!(!std::mem::replace(&mut self.is_launched, true), "the step before was collected");
        self.swap_ahead();
        std::mem::swap(&mut self.launched, &mut self.ahead.launched);
        self.is_noted = false;
        self.wants.reset(self.batch.outputs.len());
    }

    /// Gives up the row that a sequence has in the step that was launched ahead, if it has one.
    pub(crate) fn give_up_ahead(&mut self, seq: &SeqId) {
        let Self { ahead, cache, seqs, .. } = self;
        if ahead.is_launched
            && let Some(at) = ahead.launched.iter().position(|&idx| idx == seq.idx)
        {
            ahead.launched.remove(at);
            cache.shrink(seqs[seq.idx].as_mut().expect(LIVES), &[]);
        }
    }
}
