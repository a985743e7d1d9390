//! What the next step runs: one row for every answer that is being generated, and prompts in what
//! is left of the step.
//!
//! Answers whose grammars take long for their masks take turns, so that a step, which waits for the
//! masks of all its answers, waits for few of these.
//!
//! Generation is never put off by prompts of tokens. The prompt that is first in order gets at least half of
//! the step's remaining tokens, and the shortest of the others share the rest, so that a short
//! prompt need not wait for a long one. What they leave is for further prompts that fit into it
//! whole. Rows that see each other in both directions are run in one step: the first prompt gets as many
//! rows as its next such segment has, and where these do not fit beside the answers, the answers sit out
//! every other step until it is run. A prompt that begins like one that is being run waits until the common pages are in the
//! prefix cache.

use super::job::{DraftSource, Run, Stage};
use crate::backend::Role;
use crate::generate::answer::Scratch;
use crate::graph::plan::RowLimits;
use crate::run::{Chunk, Outputs, Prompt, Runner, SeqId};
use realizar_kvcache::PAGE_LEN;
use std::time::Duration;

/// The rows of a chunk, or of a prompt, whose output is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    None,
    First,
    Last,
    All,
}

/// A run's part of the step; its tokens are in the run.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) run: usize,
    /// The number of its chunk in the step.
    pub(super) chunk: usize,
    pub(super) role: Role,
    pub(super) wanted: Wanted,
}

/// From which time on a mask is slow. Grammars of ordinary schemas stay far below.
const SLOW_MASK: Duration = Duration::from_millis(2);
/// The time of the slow masks of a step together, where that is more than one.
const SLOW_MASKS: Duration = Duration::from_millis(10);

/// Prompts that get a share of a step beside the first, even if that is not all they need.
const MAX_OTHERS: usize = 3;

/// What there may be in a step at most.
#[derive(Debug, Clone, Copy)]
pub(super) struct Most {
    /// Tokens that the model itself or a draft model drafts for an answer.
    pub(super) drafts: usize,
    /// Tokens that are drafted from what its text has said before.
    pub(super) lookups: usize,
    /// Tokens of prompts where answers wait for the step, or one per answer if that is more.
    pub(super) prompt_tokens: usize,
}

impl Most {
    /// Whether nothing drafts.
    pub(super) fn is_without_drafts(&self) -> bool {
        self.drafts == 0 && self.lookups == 0
    }
}

/// What of a step is not given away.
struct Left {
    tokens: usize,
    outputs: usize,
}

/// A step as it is planned, and room for the next.
#[derive(Debug, Default)]
pub(super) struct StepPlan {
    /// What is run, in no order that matters.
    pub(super) planned: Vec<Planned>,
    /// Runs that are at their prompts, with the tokens that they still need.
    prompts: Vec<(usize, usize)>,
    /// Of prompts, the tokens that they get.
    shares: Vec<(usize, usize)>,
    /// Answers with slow masks: the steps of their last turns, the runs, and the times.
    slow: Vec<(u64, usize, Duration)>,
    n_steps: u64,
    /// In the last step no answer was generated, for the sake of a prompt.
    gave_way: bool,
}

impl StepPlan {
    /// Plans a step for `runs`, which are in the order of their keys, within `most`.
    pub(super) fn fill(&mut self, runs: &mut [Run], runner: &mut Runner, most: &Most) {
        self.planned.clear();
        let RowLimits { tokens, outputs } = runner.limits();
        let mut left = Left { tokens, outputs };
        start_prompts(runs, runner);
        self.give_turns(runs);
        let least = self.give_way(runs, tokens);
        left.tokens -= least;
        plan_generation(runs, runner.max_seq_len(), most, &mut left, &mut self.planned);
        left.tokens += least;
        let n_answers = self.planned.len();
        if n_answers > 0 {
            left.tokens = left.tokens.min(most.prompt_tokens.max(n_answers).max(least));
        }
        self.share_out(runs, left.tokens, least);
        plan_prompts(runs, &self.shares, &mut left, &mut self.planned);
        self.planned.iter_mut().enumerate().for_each(|(i, planned)| planned.chunk = i);
    }

    /// Its chunks.
    pub(super) fn chunks<'a>(&'a self, runs: &'a [Run]) -> impl Iterator<Item = Chunk<'a>> + Clone {
        self.planned.iter().map(|planned| {
            let run = &runs[planned.run];
            let outputs = match planned.wanted {
                Wanted::None => Outputs::None,
                Wanted::First => Outputs::At(&[0]),
                Wanted::Last => Outputs::Last,
                Wanted::All => Outputs::All,
            };
            let seq = run.seq.as_ref().expect("a run that is planned has a sequence");
            let rows = match planned.role {
                Role::Prompt => run.prompt.rows().slice(run.done..run.done + run.chunk.len()),
                Role::Generated => run.chunk.as_slice().into(),
            };
            Chunk { seq, rows, role: planned.role, outputs }
        })
    }

    /// Says what answers want of it, once it is launched. Answers to one prompt begin alike, so the
    /// first speaks for all, but each draws for itself.
    pub(super) fn want(&self, runs: &mut [Run], runner: &mut Runner, scratch: &mut Scratch) {
        let Some(mut wants) = runner.wants() else { return };
        for planned in &self.planned {
            let (i, run) = (planned.chunk, &mut runs[planned.run]);
            match (&mut run.stage, planned.wanted) {
                (Stage::Answer(answer), Wanted::Last | Wanted::All) => {
                    (0..=run.n_drafts).for_each(|row| answer.want((i, row), &mut wants, scratch));
                }
                (Stage::Prompt { answers, .. }, Wanted::Last) => {
                    let Some((first, others)) = answers.split_first_mut() else { continue };
                    first.want((i, 0), &mut wants, scratch);
                    others.iter().for_each(|answer| answer.want_draw((i, 0), &mut wants));
                }
                _ => {}
            }
        }
    }

    /// Decides which of the answers with slow masks are in this step.
    fn give_turns(&mut self, runs: &mut [Run]) {
        self.n_steps += 1;
        self.slow.clear();
        runs.iter_mut().for_each(|run| run.sits_out = false);
        let is_slow = |run: &Run| generates(run) && run.mask_time >= SLOW_MASK;
        let slow = runs.iter().enumerate().filter(|(_, run)| is_slow(run));
        self.slow.extend(slow.map(|(i, run)| (run.last_turn, i, run.mask_time)));
        let n_turns = take_turns(&mut self.slow);
        for (idx, &(_, i, _)) in self.slow.iter().enumerate() {
            runs[i].sits_out = idx >= n_turns;
            if idx < n_turns {
                runs[i].last_turn = self.n_steps;
            }
        }
    }

    /// The rows that the first prompt in order needs together, none where a single one will do. Where a
    /// step of `n_tokens` has not enough beside the answers, these sit out, or the prompt waits.
    fn give_way(&mut self, runs: &mut [Run], n_tokens: usize) -> usize {
        let at_prompt = |run: &&Run| run.seq.is_some() && run.in_prompt();
        let first = runs.iter().find(at_prompt).filter(|run| run.prompt.has_embeddings());
        let least =
            first.map_or(1, |run| run.prompt.rows().slice(run.done..run.prompt.len()).least());
        let n_answers = runs.iter().filter(|run| generates(run) && !run.sits_out).count();
        self.gave_way = n_answers > 0 && least + n_answers > n_tokens && !self.gave_way;
        if self.gave_way {
            runs.iter_mut().for_each(|run| run.sits_out = true);
            return least;
        }
        if least == 1 || least + n_answers > n_tokens { 0 } else { least }
    }

    /// Shares `n_tokens` out to the runs that are at their prompts, of which the first gets `least`.
    fn share_out(&mut self, runs: &[Run], n_tokens: usize, least: usize) {
        let Self { prompts, shares, .. } = self;
        shares.clear();
        prompts.clear();
        let at_prompt = |(_, run): &(usize, &Run)| run.seq.is_some() && run.in_prompt();
        let todo = |(i, run): (usize, &Run)| (i, run.prompt.len() - run.done);
        prompts.extend(runs.iter().enumerate().filter(at_prompt).map(todo));
        let Some((&mut first, others)) = prompts.split_first_mut() else { return };
        others.sort_unstable_by_key(|&(i, todo)| (todo, i));
        let (others, rest) = others.split_at(others.len().min(MAX_OTHERS));
        // The first in order takes what the others leave.
        let mut for_others = (n_tokens / 2).min(n_tokens - least);
        shares.push(first);
        for (k, &(i, todo)) in others.iter().enumerate() {
            let n = todo.min(for_others / (others.len() - k));
            for_others -= n;
            shares.push((i, n));
        }
        let given: usize = shares[1..].iter().map(|(_, n)| n).sum();
        shares[0].1 = first.1.min(n_tokens - given);
        // Whatever none of these has a use for goes to prompts that fit into it whole.
        let mut unused = n_tokens - given - shares[0].1;
        for &(i, todo) in rest {
            if todo > unused {
                break;
            }
            unused -= todo;
            shares.push((i, todo));
        }
    }
}

/// Gives every run that has none a sequence with what the prefix cache has of its prompt, unless
/// another is about to store more of it.
fn start_prompts(runs: &mut [Run], runner: &mut Runner) {
    for i in 0..runs.len() {
        let (before, rest) = runs.split_at_mut(i);
        let run = &mut rest[0];
        // Rows that the cache had would give no output.
        let reuses = run.reuses_prefix
            && runner.keeps_prefixes()
            && matches!(run.prompt_rows(), Wanted::None | Wanted::Last);
        if run.seq.is_some() {
            continue;
        }
        if reuses
            && let Some((seq, common)) = before.iter().find_map(|other| ahead(other, &run.prompt))
        {
            runner.note_junction(seq, common);
            continue;
        }
        let seq = runner.new_sequence();
        if reuses {
            // The output of the last token is wanted, unless the answer has begun already.
            let wants_last = usize::from(run.generated().is_empty());
            run.done = runner.adopt(&seq, run.prompt.rows(), run.prompt.len() - wants_last);
            run.cached = run.done;
        }
        run.seq = Some(seq);
    }
}

/// The sequence of a run that is at its prompt and will store pages that `prompt` begins with, and the
/// tokens of these pages.
fn ahead<'a>(other: &'a Run, prompt: &Prompt) -> Option<(&'a SeqId, usize)> {
    let seq = other.seq.as_ref().filter(|_| other.in_prompt())?;
    let common = other.prompt.rows().common_len(prompt.rows()) / PAGE_LEN * PAGE_LEN;
    // The last token of a prompt is run in any case.
    let stored = common.min(prompt.len() - 1) / PAGE_LEN * PAGE_LEN;
    (other.done < stored).then_some((seq, common))
}

/// Whether a run is at its answer.
fn generates(run: &Run) -> bool {
    run.seq.is_some() && !run.in_prompt()
}

/// Puts those first that had no turn for the longest; returns how many have one now, at least one.
fn take_turns(slow: &mut [(u64, usize, Duration)]) -> usize {
    slow.sort_unstable();
    let mut sum = Duration::ZERO;
    let fits = |(idx, (_, _, time)): &(usize, &(u64, usize, Duration))| {
        sum += *time;
        *idx == 0 || sum <= SLOW_MASKS
    };
    slow.iter().enumerate().take_while(fits).count()
}

fn plan_generation(
    runs: &mut [Run],
    max_seq_len: usize,
    most: &Most,
    left: &mut Left,
    planned: &mut Vec<Planned>,
) {
    let has_turn = |run: &Run| generates(run) && !run.sits_out;
    let mut n_after = runs.iter().filter(|run| has_turn(run)).count();
    for (i, run) in runs.iter_mut().enumerate().filter(|(_, run)| has_turn(run)) {
        n_after -= 1; // each of them gets a row
        let (known, at) = (run.n_known(), run.done - run.prompt.len());
        let Stage::Answer(answer) = &run.stage else { unreachable!("its prompt is run") };
        let todo = &answer.ids()[at..];
        let n = todo.len().min(left.tokens - n_after);
        run.chunk.clear();
        run.chunk.reserve(1 + most.drafts.max(most.lookups).min(left.tokens));
        run.chunk.extend_from_slice(&todo[..n]);
        let reaches_end = n == todo.len();
        run.n_drafts = 0;
        if n == 1 && reaches_end {
            let room = (left.tokens - n_after - 1)
                .min(left.outputs - n_after - 1)
                .min(answer.remaining().saturating_sub(1))
                .min(max_seq_len - known);
            if run.prompt.has_embeddings() {
                run.guesses.clear();
            } else if run.guesses.is_empty() {
                let prompt = run.prompt.rows().ids();
                let most = most.lookups.min(room);
                run.lookup.propose((prompt, answer.ids()), most, &mut run.chunk);
                run.drafted_by = DraftSource::Lookup;
            } else {
                run.chunk.extend(run.guesses.drain(..).take(most.drafts.min(room)));
                run.drafted_by = run.guesses_by;
            }
            run.n_drafts = run.chunk.len() - 1;
        }
        let wanted = match (reaches_end, run.n_drafts) {
            (false, _) => Wanted::None,
            (true, 0) => Wanted::Last,
            (true, _) => Wanted::All,
        };
        left.tokens -= run.chunk.len();
        left.outputs -= if reaches_end { 1 + run.n_drafts } else { 0 };
        planned.push(Planned { run: i, chunk: 0, role: Role::Generated, wanted });
    }
}

/// Plans the prompts' shares, as far as there are rows of output for them.
fn plan_prompts(
    runs: &mut [Run],
    shares: &[(usize, usize)],
    left: &mut Left,
    planned: &mut Vec<Planned>,
) {
    for &(i, mut n) in shares {
        let run = &mut runs[i];
        let rows = run.prompt.rows().slice(run.done..run.prompt.len());
        let todo = rows.ids();
        n = rows.cut(n);
        let wanted = match run.prompt_rows() {
            Wanted::All => {
                n = rows.cut(n.min(left.outputs));
                Wanted::All
            }
            // Where no output row is left, its last token is for the next step.
            Wanted::Last if n == todo.len() && left.outputs == 0 => {
                n = rows.cut(n - 1);
                Wanted::None
            }
            Wanted::Last if n == todo.len() => Wanted::Last,
            Wanted::First if run.done == 0 => {
                n *= usize::from(left.outputs > 0);
                Wanted::First
            }
            Wanted::None | Wanted::First | Wanted::Last => Wanted::None,
        };
        if n == 0 {
            continue;
        }
        run.chunk.clear();
        run.chunk.extend_from_slice(&todo[..n]);
        run.n_drafts = 0;
        left.tokens -= n;
        left.outputs -= match wanted {
            Wanted::None => 0,
            Wanted::First | Wanted::Last => 1,
            Wanted::All => n,
        };
        planned.push(Planned { run: i, chunk: 0, role: Role::Prompt, wanted });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_with_slow_masks_take_turns() {
        // Masks of three answers, of which two fit into a step, and one that fits with none.
        let times = [4, 5, 6, 15].map(Duration::from_millis);
        let mut last = [0_u64; 4];
        let mut turns = Vec::new();
        for step in 1..=6 {
            let mut slow: Vec<_> = (0..4).map(|run| (last[run], run, times[run])).collect();
            let n = take_turns(&mut slow);
            let runs: Vec<usize> = slow[..n].iter().map(|&(_, run, _)| run).collect();
            runs.iter().for_each(|&run| last[run] = step);
            turns.push(runs);
        }
        assert_eq!(turns, [vec![0, 1], vec![2], vec![3], vec![0, 1], vec![2], vec![3]]);
        assert_eq!(take_turns(&mut []), 0);
    }
}
