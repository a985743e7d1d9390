//! Draft tokens by the model's own multi-token prediction layer.
//!
//! The layer takes the hidden state of a sequence's last token and the token that was sampled there,
//! and predicts the next one. Its own hidden state and that prediction give one more, and so on.
//!
//! The number of draft tokens follows from the recent acceptance and the cost of a row; see
//! [`Costs::depth`].

use super::DraftSource;
use crate::Error;
use crate::engine::sequence::Sequence;
use crate::run::{DraftBytes, Runner, SeqId, likeliest};
use std::cmp::Reverse;

/// The weight of earlier draft tokens after each further step.
const DECAY: f32 = 0.9;
/// Accepted and judged draft tokens that a sequence starts with.
const PRIOR: [f32; 2] = [1.5, 2.0];
/// Accepted and judged draft tokens after a pause.
const RETRIAL: [f32; 2] = [0.5, 1.0];
/// Steps at the start of a sequence that draft at least one token, to measure acceptance.
const TRIAL: u32 = 4;
/// Steps without draft tokens after drafting stopped paying.
const PAUSE: u32 = 32;
/// The cost of a further row that reads the same weights, in steps of one row.
const ROW_COST: f32 = 0.15;

/// The costs of drafting, in steps of one row.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Costs {
    /// Drafting a token for one sequence.
    draft: f32,
    /// A further row in a step.
    row: f32,
}

impl Costs {
    fn new(bytes: &DraftBytes) -> Self {
        let DraftBytes { step, draft, experts } = *bytes;
        let share = |n: usize| n as f32 / step.max(1) as f32;
        // A further row mostly selects other experts, whose weights are read for it alone.
        Self { draft: share(draft), row: ROW_COST + (1.0 - ROW_COST) * share(experts) }
    }

    /// The time of a step of this many rows.
    fn step(&self, n_rows: f32) -> f32 {
        1.0 + self.row * (n_rows - 1.0)
    }

    /// The number of draft tokens per sequence, up to `max`, with the most generated tokens per
    /// time, for `n_seqs` sequences and this acceptance probability of a token after accepted ones.
    ///
    /// With `d` draft tokens a step generates `1 + p + .. + p^d` tokens on average. It takes as long
    /// as a step of `1 + d` rows per sequence, and the `d` steps that draft.
    fn depth(&self, acceptance: f32, n_seqs: usize, max: usize) -> usize {
        let n = n_seqs.max(1) as f32;
        let (mut best, mut fastest, mut tokens, mut power) = (0, 0.0, 0.0, 1.0);
        for depth in 0..=max {
            tokens += power;
            power *= acceptance;
            let d = depth as f32;
            let time = self.step(n * (1.0 + d)) + d * self.draft * self.step(n);
            if tokens / time > fastest {
                (best, fastest) = (depth, tokens / time);
            }
        }
        best
    }
}

/// The recent acceptance of a sequence's draft tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Acceptance {
    accepted: f32,
    /// Draft tokens up to the first rejected one of each step.
    judged: f32,
    /// Steps that are left of a trial, which draft at least one token.
    trial: u32,
    /// Steps that are left of a pause.
    pause: u32,
}

impl Default for Acceptance {
    fn default() -> Self {
        let [accepted, judged] = PRIOR;
        Self { accepted, judged, trial: TRIAL, pause: 0 }
    }
}

impl Acceptance {
    /// The number of tokens to draft for the next step, up to `max`, which is at least one.
    fn depth(&mut self, costs: &Costs, n_seqs: usize, max: usize) -> usize {
        if self.pause > 0 {
            self.pause -= 1;
            return 0;
        }
        let depth = costs.depth(self.accepted / self.judged, n_seqs, max);
        if self.trial > 0 {
            // With this many sequences not even accepted tokens would gain anything.
            if costs.depth(1.0, n_seqs, max) == 0 {
                return 0;
            }
            self.trial -= 1;
            return depth.max(1);
        }
        if depth == 0 {
            let [accepted, judged] = RETRIAL;
            *self = Self { accepted, judged, trial: 1, pause: PAUSE };
        }
        depth
    }

    /// Notes that the first `n_accepted` of `n_drafts` tokens were accepted. Tokens after the first
    /// rejected one don't count.
    pub(super) fn judge(&mut self, n_drafts: usize, n_accepted: usize) {
        self.accepted = self.accepted * DECAY + n_accepted as f32;
        self.judged = self.judged * DECAY + n_drafts.min(n_accepted + 1) as f32;
    }
}

/// The hidden state of a sequence's last token.
#[derive(Debug, Default, Clone)]
pub(super) struct Hidden {
    /// The length of the sequence up to that token.
    len: usize,
    state: Vec<f32>, // [hidden_dim], empty if there is none
}

impl Hidden {
    /// Sets the state after `len` tokens; `None` if the model does not draft.
    pub(super) fn set(&mut self, len: usize, state: Option<&[f32]>) {
        self.len = len;
        self.state.clear();
        self.state.extend_from_slice(state.unwrap_or_default());
    }

    /// Whether there is a state after exactly `len` tokens.
    fn is_after(&self, len: usize) -> bool {
        self.len == len && !self.state.is_empty()
    }
}

/// A sequence to draft for.
#[derive(Debug, Clone, Copy)]
struct Ready {
    seq_idx: usize,
    /// The number of tokens to draft.
    depth: usize,
}

/// Drafting with the model's own layer.
#[derive(Debug)]
pub(in crate::engine) struct Heads {
    max_depth: usize,
    /// Drafts `max_depth` tokens in every step, whatever was accepted.
    always: bool,
    costs: Costs,
    /// The sequences to draft for, deepest first.
    ready: Vec<Ready>,
    hidden: Vec<f32>, // [n_ready, hidden_dim]
    /// The tokens of one round.
    drafted: Vec<u32>,
}

impl Heads {
    /// Drafting of up to `max_depth` tokens, or `always` of as many; `None` if the runner's model has
    /// no layer for it.
    pub(in crate::engine) fn new(
        runner: &Runner,
        bytes: Option<DraftBytes>,
        max_depth: usize,
        always: bool,
    ) -> Option<Self> {
        let (dim, bytes) = runner.hidden_dim().zip(bytes.filter(|_| max_depth > 0))?;
        let n = runner.limits().outputs.min(runner.limits().tokens);
        Some(Self {
            max_depth,
            always,
            costs: Costs::new(&bytes),
            ready: Vec::with_capacity(n),
            hidden: Vec::with_capacity(n * dim),
            drafted: Vec::with_capacity(n),
        })
    }

    /// Proposes draft tokens for the sequences that are at their last token. There are none if pages
    /// run out.
    pub(super) fn propose(
        &mut self,
        runner: &mut Runner,
        seqs: &mut [Sequence],
    ) -> Result<(), Error> {
        self.choose_depths(runner, seqs);
        if self.ready.is_empty() {
            return Ok(());
        }
        // The rows of a round are the first ones of the round before.
        self.ready.sort_unstable_by_key(|ready| (Reverse(ready.depth), ready.seq_idx));
        self.hidden.clear();
        for ready in &self.ready {
            self.hidden.extend_from_slice(&seqs[ready.seq_idx].draft.hidden.state);
        }
        match runner.begin_draft(depths(&self.ready, seqs)) {
            Ok(()) => {}
            Err(Error::Kv(_)) => return Ok(()),
            Err(error) => return Err(error),
        }
        let result = self.draft(runner, seqs);
        runner.end_draft(depths(&self.ready, seqs).map(|(kv, _)| kv));
        result
    }

    /// Lists the sequences to draft for, with their numbers of draft tokens.
    fn choose_depths(&mut self, runner: &Runner, seqs: &mut [Sequence]) {
        let limit = runner.limits().outputs.min(runner.limits().tokens);
        let n_seqs = seqs.iter().filter(|seq| seq.in_decode()).count();
        self.ready.clear();
        for (seq_idx, seq) in seqs.iter_mut().enumerate() {
            seq.draft.proposed.clear();
            let is_ready = seq.at_last_token()
                && seq.draft.hidden.is_after(seq.n_computed)
                && !seq.prompt.has_embeddings();
            let room = runner.max_seq_len().saturating_sub(seq.n_tokens());
            let max = self.max_depth.min(room).min(seq.remaining().saturating_sub(1));
            if !is_ready || max == 0 || self.ready.len() == limit {
                continue;
            }
            let depth = match self.always {
                true => max,
                false => seq.draft.acceptance.depth(&self.costs, n_seqs, max),
            };
            if depth > 0 {
                seq.draft.proposed.reserve(self.max_depth);
                seq.draft.proposed_by = DraftSource::Heads;
                self.ready.push(Ready { seq_idx, depth });
            }
        }
    }

    /// Drafts a token for every ready sequence, then a further one for those of depth two, and so
    /// on.
    fn draft(&mut self, runner: &mut Runner, seqs: &mut [Sequence]) -> Result<(), Error> {
        let dim = runner.hidden_dim().unwrap_or(0);
        for depth in 0..self.ready[0].depth {
            let n = self.ready.iter().take_while(|ready| ready.depth > depth).count();
            self.hidden.truncate(n * dim);
            let inputs = self.ready[..n].iter().filter_map(|ready| {
                let seq = &seqs[ready.seq_idx];
                let last = seq.draft.proposed.last().or(seq.generated().last());
                Some((seq.kv.as_ref()?, *last?))
            });
            let rows = runner.draft(inputs, depth, &self.hidden)?;
            self.drafted.clear();
            self.drafted.extend((0..n).map(|i| likeliest(rows.row(i, 0))));
            for (i, ready) in self.ready[..n].iter().enumerate() {
                seqs[ready.seq_idx].draft.proposed.push(self.drafted[i]);
                let next = runner.hidden(i, 0).unwrap_or_default();
                self.hidden[i * dim..(i + 1) * dim].copy_from_slice(next);
            }
        }
        Ok(())
    }
}

/// The ready sequences with their numbers of draft tokens.
fn depths<'s>(
    ready: &'s [Ready],
    seqs: &'s [Sequence],
) -> impl Iterator<Item = (&'s SeqId, usize)> + Clone {
    ready.iter().filter_map(|ready| Some((seqs[ready.seq_idx].kv.as_ref()?, ready.depth)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_depth_follows_what_is_accepted_and_what_it_costs() {
        let dense = Costs::new(&DraftBytes { step: 1000, draft: 50, experts: 0 });
        assert_eq!(dense, Costs { draft: 0.05, row: 0.15 });
        let depths = |costs: Costs, n| [0.0, 0.3, 0.6, 0.8, 1.0].map(|p| costs.depth(p, n, 4));
        assert_eq!(depths(dense, 1), [0, 1, 2, 4, 4]);
        // With many sequences the rows outweigh the weights, which all rows share.
        assert_eq!(depths(dense, 16), [0, 0, 0, 1, 4]);
        // A row that reads experts of its own costs more.
        let experts = Costs::new(&DraftBytes { step: 1000, draft: 50, experts: 600 });
        assert!((experts.row - 0.66).abs() < 1e-6);
        assert_eq!(depths(experts, 1), [0, 0, 0, 1, 4]);
    }

    #[test]
    fn a_sequence_whose_drafts_are_rejected_pauses_and_tries_again() {
        let costs = Costs { draft: 0.1, row: 0.15 };
        let mut acceptance = Acceptance::default();
        let mut depths = Vec::new();
        for _ in 0..120 {
            let depth = acceptance.depth(&costs, 1, 4);
            if depth > 0 {
                acceptance.judge(depth, 0);
            }
            depths.push(depth);
        }
        assert!(depths[0] > 1, "{depths:?}");
        assert!(depths[..8].contains(&0), "{depths:?}");
        let n_drafted = depths.iter().filter(|&&depth| depth > 0).count();
        assert!((4..=12).contains(&n_drafted), "{depths:?}");

        // Costly drafts are tried too, and continue while they are accepted.
        let costs = Costs { draft: 0.5, row: 0.4 };
        assert_eq!(costs.depth(0.75, 1, 4), 0);
        let mut acceptance = Acceptance::default();
        for _ in 0..8 {
            assert!(acceptance.depth(&costs, 1, 4) > 0);
            acceptance.judge(1, 1);
        }
        // With many sequences they would not pay.
        assert_eq!(Acceptance::default().depth(&costs, 16, 4), 0);

        let mut acceptance = Acceptance::default();
        for _ in 0..50 {
            let depth = acceptance.depth(&costs, 1, 4);
            acceptance.judge(depth, depth);
        }
        assert_eq!(acceptance.depth(&costs, 1, 4), 4);
    }
}
