//! Plans the next step: a decode row for every decoding sequence, and prefill rows in the rest.
//!
//! - Decode rows come first, so that prefill never delays them by more than one step.
//! - The first prompt in order gets at least half of the rows that are left, and the shortest of the
//!   others share the rest, so that a short prompt need not wait for a long one. Rows that these
//!   leave go to further prompts that fit whole.
//! - Sequences with slow grammar masks are scheduled round-robin, because a step waits for every
//!   mask.
//! - Rows with bidirectional attention run in one step. If they don't fit beside the decode rows,
//!   decoding is deferred in every other step until they have run.
//! - A prompt that shares its beginning with one in prefill waits until the common pages are in the
//!   prefix cache.

use super::sequence::{FIRST_ROW, Sequence, Stage};
use super::speculate::DraftSource;
use super::step::{PlannedChunk, StepPlan};
use crate::run::{Outputs, Prompt, Runner, SeqId};
use realizar_backends::Phase;
use realizar_kvcache::PAGE_LEN;
use realizar_model::graph::plan::RowLimits;
use std::time::Duration;

/// The time from which on a grammar mask is slow. Ordinary schemas stay far below.
const SLOW_MASK: Duration = Duration::from_millis(2);
/// The limit for the slow masks of one step together, unless it has only one.
const SLOW_MASKS: Duration = Duration::from_millis(10);

/// The maximum number of prompts that share a step with the first, even if their share is not whole.
const MAX_OTHERS: usize = 3;

/// Per-step limits.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepLimits {
    /// Draft tokens of a draft model or the model's own heads, per sequence.
    pub(super) drafts: usize,
    /// Draft tokens of prompt lookup, per sequence.
    pub(super) lookups: usize,
    /// Prefill rows in a step with decode rows, or one per decode row if that is more.
    pub(super) prompt_tokens: usize,
}

impl StepLimits {
    /// Whether any tokens are drafted.
    pub(super) fn has_drafts(&self) -> bool {
        self.drafts > 0 || self.lookups > 0
    }
}

/// What remains of the step.
struct Budget {
    tokens: usize,
    outputs: usize,
}

/// The prefill rows that a sequence needs, or gets.
#[derive(Debug, Clone, Copy)]
struct Prefill {
    seq_idx: usize,
    n_tokens: usize,
}

/// A decoding sequence whose grammar mask is slow. The order is that of scheduling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct SlowMask {
    last_step: u64,
    seq_idx: usize,
    time: Duration,
}

/// Plans steps within [`StepLimits`].
#[derive(Debug)]
pub(super) struct Scheduler {
    limits: StepLimits,
    n_steps: u64,
    /// Decoding was deferred in the last step in favor of a prompt.
    deferred_decode: bool,
    /// Sequences in prefill, with the tokens that they lack.
    prefills: Vec<Prefill>,
    /// Their shares of the step.
    shares: Vec<Prefill>,
    slow: Vec<SlowMask>,
}

impl Scheduler {
    pub(super) fn new(limits: StepLimits) -> Self {
        Self {
            limits,
            n_steps: 0,
            deferred_decode: false,
            prefills: Vec::new(),
            shares: Vec::new(),
            slow: Vec::new(),
        }
    }

    /// Plans a step for `seqs`, which are sorted by their keys.
    pub(super) fn schedule(
        &mut self,
        seqs: &mut [Sequence],
        runner: &mut Runner,
        plan: &mut StepPlan,
    ) {
        plan.chunks.clear();
        let RowLimits { tokens, outputs } = runner.limits();
        let mut budget = Budget { tokens, outputs };
        start_prefills(seqs, runner);
        self.rotate_slow_masks(seqs);
        let reserved = self.defer_decode_for(seqs, tokens);
        budget.tokens -= reserved;
        self.schedule_decodes(seqs, runner.max_seq_len(), &mut budget, plan);
        budget.tokens += reserved;
        let n_decodes = plan.chunks.len();
        if n_decodes > 0 {
            let limit = self.limits.prompt_tokens.max(n_decodes).max(reserved);
            budget.tokens = budget.tokens.min(limit);
        }
        self.share_out(seqs, budget.tokens, reserved);
        self.schedule_prefills(seqs, &mut budget, plan);
        plan.chunks.iter_mut().enumerate().for_each(|(i, chunk)| chunk.batch_idx = i);
    }

    /// Defers the sequences with slow masks that this step does not wait for.
    fn rotate_slow_masks(&mut self, seqs: &mut [Sequence]) {
        self.n_steps += 1;
        self.slow.clear();
        for (seq_idx, seq) in seqs.iter_mut().enumerate() {
            seq.is_deferred = false;
            if seq.in_decode() && seq.mask_time >= SLOW_MASK {
                let (last_step, time) = (seq.last_slow_step, seq.mask_time);
                self.slow.push(SlowMask { last_step, seq_idx, time });
            }
        }
        let n_scheduled = sort_slow_masks(&mut self.slow);
        for (i, slow) in self.slow.iter().enumerate() {
            let seq = &mut seqs[slow.seq_idx];
            seq.is_deferred = i >= n_scheduled;
            if i < n_scheduled {
                seq.last_slow_step = self.n_steps;
            }
        }
    }

    /// The number of rows to reserve for the first prompt, which must run together; 0 if any number
    /// will do. If a step of `n_tokens` has too few beside the decode rows, either these are
    /// deferred or the prompt waits, in turns.
    fn defer_decode_for(&mut self, seqs: &mut [Sequence], n_tokens: usize) -> usize {
        let first = seqs.iter().find(|seq| seq.kv.is_some() && seq.in_prefill());
        let n_needed = first
            .filter(|seq| seq.prompt.has_embeddings())
            .map_or(1, |seq| seq.prompt.rows().slice(seq.n_computed..seq.prompt.len()).least());
        let n_decodes = seqs.iter().filter(|seq| seq.in_decode() && !seq.is_deferred).count();
        let fits = n_needed + n_decodes <= n_tokens;
        self.deferred_decode = n_decodes > 0 && !fits && !self.deferred_decode;
        if self.deferred_decode {
            seqs.iter_mut().for_each(|seq| seq.is_deferred = true);
            return n_needed;
        }
        if n_needed == 1 || !fits { 0 } else { n_needed }
    }

    /// Plans the decode rows, each with its draft tokens as far as the budget goes.
    fn schedule_decodes(
        &self,
        seqs: &mut [Sequence],
        max_seq_len: usize,
        budget: &mut Budget,
        plan: &mut StepPlan,
    ) {
        let is_next = |seq: &Sequence| seq.in_decode() && !seq.is_deferred;
        let mut n_after = seqs.iter().filter(|seq| is_next(seq)).count();
        for (seq_idx, seq) in seqs.iter_mut().enumerate().filter(|(_, seq)| is_next(seq)) {
            n_after -= 1; // Each of the following gets a row.
            let n_tokens = seq.n_tokens();
            let n_decode = seq.n_computed - seq.prompt.len();
            let Stage::Answer(answer) = &seq.stage else { unreachable!("its prompt is computed") };
            // More than one token if the sequence was preempted.
            let todo = &answer.ids()[n_decode..];
            let n = todo.len().min(budget.tokens - n_after);
            let max_drafts = self.limits.drafts.max(self.limits.lookups).min(budget.tokens);
            seq.scheduled.clear();
            seq.scheduled.reserve(1 + max_drafts);
            seq.scheduled.extend_from_slice(&todo[..n]);
            let reaches_end = n == todo.len();
            seq.n_drafts = 0;
            if n == 1 && reaches_end {
                let room = (budget.tokens - n_after - 1)
                    .min(budget.outputs - n_after - 1)
                    .min(answer.remaining().saturating_sub(1))
                    .min(max_seq_len - n_tokens);
                let draft = &mut seq.draft;
                if seq.prompt.has_embeddings() {
                    draft.proposed.clear();
                } else if draft.proposed.is_empty() {
                    let prompt = seq.prompt.rows().ids();
                    let max = self.limits.lookups.min(room);
                    draft.lookup.propose(prompt, answer.ids(), max, &mut seq.scheduled);
                    draft.scheduled_by = DraftSource::Lookup;
                } else {
                    let max = self.limits.drafts.min(room);
                    seq.scheduled.extend(draft.proposed.drain(..).take(max));
                    draft.scheduled_by = draft.proposed_by;
                }
                seq.n_drafts = seq.scheduled.len() - 1;
            }
            let outputs = match (reaches_end, seq.n_drafts) {
                (false, _) => Outputs::None,
                (true, 0) => Outputs::Last,
                (true, _) => Outputs::All,
            };
            budget.tokens -= seq.scheduled.len();
            budget.outputs -= if reaches_end { 1 + seq.n_drafts } else { 0 };
            plan.chunks.push(PlannedChunk { seq_idx, batch_idx: 0, phase: Phase::Decode, outputs });
        }
    }

    /// Shares `n_tokens` out to the sequences in prefill. The first gets at least `reserved`.
    fn share_out(&mut self, seqs: &[Sequence], n_tokens: usize, reserved: usize) {
        self.shares.clear();
        self.prefills.clear();
        for (seq_idx, seq) in seqs.iter().enumerate() {
            if seq.kv.is_some() && seq.in_prefill() {
                let n_tokens = seq.prompt.len() - seq.n_computed;
                self.prefills.push(Prefill { seq_idx, n_tokens });
            }
        }
        let Some((&mut first, others)) = self.prefills.split_first_mut() else { return };
        others.sort_unstable_by_key(|prefill| (prefill.n_tokens, prefill.seq_idx));
        let (others, rest) = others.split_at(others.len().min(MAX_OTHERS));
        // The first takes what the others leave.
        let mut for_others = (n_tokens / 2).min(n_tokens - reserved);
        self.shares.push(first);
        for (k, other) in others.iter().enumerate() {
            let n = other.n_tokens.min(for_others / (others.len() - k));
            for_others -= n;
            self.shares.push(Prefill { n_tokens: n, ..*other });
        }
        let n_given: usize = self.shares[1..].iter().map(|share| share.n_tokens).sum();
        self.shares[0].n_tokens = first.n_tokens.min(n_tokens - n_given);
        // Rows that none of these needs go to prompts that fit whole.
        let mut unused = n_tokens - n_given - self.shares[0].n_tokens;
        for &prefill in rest {
            if prefill.n_tokens > unused {
                break;
            }
            unused -= prefill.n_tokens;
            self.shares.push(prefill);
        }
    }

    /// Plans the prefill rows of the shares, as far as there are output rows for them.
    fn schedule_prefills(&self, seqs: &mut [Sequence], budget: &mut Budget, plan: &mut StepPlan) {
        for &Prefill { seq_idx, n_tokens } in &self.shares {
            let seq = &mut seqs[seq_idx];
            let rows = seq.prompt.rows().slice(seq.n_computed..seq.prompt.len());
            let todo = rows.ids();
            let mut n = rows.cut(n_tokens);
            let outputs = match seq.prompt_outputs() {
                Outputs::All => {
                    n = rows.cut(n.min(budget.outputs));
                    Outputs::All
                }
                // Without an output row left, the last token is for the next step.
                Outputs::Last if n == todo.len() && budget.outputs == 0 => {
                    n = rows.cut(n - 1);
                    Outputs::None
                }
                Outputs::Last if n == todo.len() => Outputs::Last,
                Outputs::At(_) if seq.n_computed == 0 => {
                    n *= usize::from(budget.outputs > 0);
                    FIRST_ROW
                }
                Outputs::None | Outputs::At(_) | Outputs::Last => Outputs::None,
            };
            if n == 0 {
                continue;
            }
            seq.scheduled.clear();
            seq.scheduled.extend_from_slice(&todo[..n]);
            seq.n_drafts = 0;
            budget.tokens -= n;
            budget.outputs -= match outputs {
                Outputs::None => 0,
                Outputs::At(_) | Outputs::Last => 1,
                Outputs::All => n,
            };
            plan.chunks.push(PlannedChunk {
                seq_idx,
                batch_idx: 0,
                phase: Phase::Prefill,
                outputs,
            });
        }
    }
}

/// Gives pages to every sequence that has none, with the beginning of its prompt from the prefix
/// cache, unless another sequence is about to store more of it.
fn start_prefills(seqs: &mut [Sequence], runner: &mut Runner) {
    for i in 0..seqs.len() {
        let (before, rest) = seqs.split_at_mut(i);
        let seq = &mut rest[0];
        if seq.kv.is_some() {
            continue;
        }
        // Cached rows give no output.
        let reuses = seq.reuses_prefix
            && runner.keeps_prefixes()
            && matches!(seq.prompt_outputs(), Outputs::None | Outputs::Last);
        if reuses
            && let Some((kv, common)) = before.iter().find_map(|other| ahead(other, &seq.prompt))
        {
            runner.note_junction(kv, common);
            continue;
        }
        let kv = runner.new_sequence();
        if reuses {
            // The last token's output is needed, unless the answer has begun.
            let n_needed = usize::from(seq.generated().is_empty());
            let max_len = seq.prompt.len() - n_needed;
            seq.n_computed = runner.adopt(&kv, seq.prompt.rows(), max_len);
            seq.n_cached = seq.n_computed;
        }
        seq.kv = Some(kv);
    }
}

/// If `other` is in prefill and will store pages of its prompt that `prompt` begins with: its id, and
/// the number of common tokens in whole pages.
fn ahead<'a>(other: &'a Sequence, prompt: &Prompt) -> Option<(&'a SeqId, usize)> {
    let kv = other.kv.as_ref().filter(|_| other.in_prefill())?;
    let common = other.prompt.rows().common_len(prompt.rows()) / PAGE_LEN * PAGE_LEN;
    // The last token of a prompt is always computed.
    let stored = common.min(prompt.len() - 1) / PAGE_LEN * PAGE_LEN;
    (other.n_computed < stored).then_some((kv, common))
}

/// Sorts the sequences that waited longest to the front. Returns how many of them the step waits for,
/// at least one.
fn sort_slow_masks(slow: &mut [SlowMask]) -> usize {
    slow.sort_unstable();
    let mut sum = Duration::ZERO;
    let fits = |(i, slow): &(usize, &SlowMask)| {
        sum += slow.time;
        *i == 0 || sum <= SLOW_MASKS
    };
    slow.iter().enumerate().take_while(fits).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_with_slow_masks_take_turns() {
        // Of three masks two fit into a step; the fourth fits with none.
        let times = [4, 5, 6, 15].map(Duration::from_millis);
        let mut last = [0_u64; 4];
        let mut turns = Vec::new();
        for step in 1..=6 {
            let slow_mask = |i: usize| SlowMask { last_step: last[i], seq_idx: i, time: times[i] };
            let mut slow: Vec<_> = (0..4).map(slow_mask).collect();
            let n = sort_slow_masks(&mut slow);
            let scheduled: Vec<usize> = slow[..n].iter().map(|slow| slow.seq_idx).collect();
            scheduled.iter().for_each(|&i| last[i] = step);
            turns.push(scheduled);
        }
        assert_eq!(turns, [vec![0, 1], vec![2], vec![3], vec![0, 1], vec![2], vec![3]]);
        assert_eq!(sort_slow_masks(&mut []), 0);
    }
}
