//! Draft tokens by a layer for multi-token prediction that the model has.
//!
//! After each step the hidden state of the last token of every answer is available. With the token that was chosen
//! there it goes through the layer, which drafts the next one; the layer's own hidden state and that draft give one
//! more, and so on. What was drafted is run as [prompt lookup](super::lookup)'s tokens are, so the answers do not
//! depend on it.
//!
//! How many tokens are drafted follows from what was accepted lately, see [`Costs::depth`].

use super::job::{DraftSource, Run};
use crate::Error;
use crate::run::{DraftBytes, Runner, SeqId, likeliest};

/// What is accepted counts less by this factor after every further step.
const DECAY: f32 = 0.9;
/// An answer begins as if this many of this many draft tokens had been accepted.
const PRIOR: [f32; 2] = [1.5, 2.0];
/// After a pause it continues as if this many had.
const RETRIAL: [f32; 2] = [0.5, 1.0];
/// Steps of an answer in which it shows whether its draft tokens are any good.
const TRIAL: u32 = 4;
/// Steps without draft tokens after these were not worth their time.
const PAUSE: u32 = 32;
/// What a further row adds to the time of a step, in steps of one row, where all rows read the same weights.
const ROW_COST: f32 = 0.15;

/// What drafting costs, in steps of one row.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Costs {
    /// Drafting a token for one answer.
    draft: f32,
    /// A further row in a step.
    row: f32,
}

impl Costs {
    fn new(bytes: &DraftBytes) -> Self {
        let DraftBytes { step, draft, experts } = *bytes;
        let share = |n: usize| n as f32 / step.max(1) as f32;
        // A further row mostly chooses other experts, whose weights are read for it alone.
        Self { draft: share(draft), row: ROW_COST + (1.0 - ROW_COST) * share(experts) }
    }

    /// The time of a step of this many rows.
    fn step(&self, n_rows: f32) -> f32 {
        1.0 + self.row * (n_rows - 1.0)
    }

    /// The number of draft tokens for each of `n_answers`, up to `most`, with which most tokens are generated in a time,
    /// where each is accepted with this probability if those before it are.
    ///
    /// With `d` draft tokens a step generates `1 + p + .. + p^d` tokens on average. It takes as long as a step of `1 + d`
    /// rows for every answer, and the `d` steps that draft.
    fn depth(&self, accepted: f32, n_answers: usize, most: usize) -> usize {
        let n = n_answers.max(1) as f32;
        let (mut best, mut fastest, mut tokens, mut power) = (0, 0.0, 0.0, 1.0);
        for depth in 0..=most {
            tokens += power;
            power *= accepted;
            let d = depth as f32;
            let time = self.step(n * (1.0 + d)) + d * self.draft * self.step(n);
            if tokens / time > fastest {
                (best, fastest) = (depth, tokens / time);
            }
        }
        best
    }
}

/// How the draft tokens of one answer went lately.
#[derive(Debug, Clone, Copy)]
pub(super) struct Track {
    right: f32,
    tried: f32,
    /// Steps with a draft token at least, to learn how these go.
    trial: u32,
    /// Steps without any.
    pause: u32,
}

impl Default for Track {
    fn default() -> Self {
        let [right, tried] = PRIOR;
        Self { right, tried, trial: TRIAL, pause: 0 }
    }
}

impl Track {
    /// How many tokens to draft for the next step, up to `most`, which is at least one.
    fn depth(&mut self, costs: &Costs, n_answers: usize, most: usize) -> usize {
        if self.pause > 0 {
            self.pause -= 1;
            return 0;
        }
        let depth = costs.depth(self.right / self.tried, n_answers, most);
        if self.trial > 0 {
            // Not even accepted ones would gain anything with this many sequences.
            if costs.depth(1.0, n_answers, most) == 0 {
                return 0;
            }
            self.trial -= 1;
            return depth.max(1);
        }
        if depth == 0 {
            let [right, tried] = RETRIAL;
            *self = Self { right, tried, trial: 1, pause: PAUSE };
        }
        depth
    }

    /// Notes that the first `n_right` of `n_drafted` tokens were accepted. Those after the first that was not
    /// tell nothing.
    pub(super) fn judge(&mut self, n_drafted: usize, n_right: usize) {
        self.right = self.right * DECAY + n_right as f32;
        self.tried = self.tried * DECAY + n_drafted.min(n_right + 1) as f32;
    }
}

/// The hidden state of an answer's last token.
#[derive(Debug, Default, Clone)]
pub(super) struct Hidden {
    /// Tokens of its sequence up to there.
    len: usize,
    state: Vec<f32>, // [hidden_dim], empty if there is none
}

impl Hidden {
    /// Takes the state after `len` tokens; none where the model does not draft.
    pub(super) fn take(&mut self, len: usize, state: Option<&[f32]>) {
        self.len = len;
        self.state.clear();
        self.state.extend_from_slice(state.unwrap_or_default());
    }
}

/// Drafting with the model's own layer.
#[derive(Debug)]
pub(super) struct Head {
    most: usize,
    /// As many are drafted in every step, whatever was accepted.
    always: bool,
    costs: Costs,
    /// The runs that tokens are drafted for and how many, the most first.
    ready: Vec<(usize, usize)>,
    hidden: Vec<f32>, // [n_ready, hidden_dim]
    drafted: Vec<u32>,
}

impl Head {
    /// Drafting of up to `most` tokens, or `always` of as many; `None` if the runner's model has no layer for it.
    pub(super) fn new(
        runner: &Runner,
        bytes: Option<DraftBytes>,
        (most, always): (usize, bool),
    ) -> Option<Self> {
        let (dim, bytes) = runner.hidden_dim().zip(bytes.filter(|_| most > 0))?;
        let n = runner.limits().outputs.min(runner.limits().tokens);
        Some(Self {
            most,
            always,
            costs: Costs::new(&bytes),
            ready: Vec::with_capacity(n),
            hidden: Vec::with_capacity(n * dim),
            drafted: Vec::with_capacity(n),
        })
    }

    /// Fills the draft tokens of the runs that are at their last token. Where there is no room for their keys
    /// and values, there are none.
    pub(super) fn guess(&mut self, runner: &mut Runner, runs: &mut [Run]) -> Result<(), Error> {
        let (cap, always) = (self.most, self.always);
        let Self { costs, ready, hidden, .. } = self;
        let limit = runner.limits().outputs.min(runner.limits().tokens);
        let n_answers = runs.iter().filter(|run| run.seq.is_some() && !run.in_prompt()).count();
        ready.clear();
        for (i, run) in runs.iter_mut().enumerate() {
            run.guesses.clear();
            let is_ready = run.seq.is_some()
                && run.done + 1 == run.n_known()
                && run.hidden.len == run.done
                && !run.hidden.state.is_empty()
                && !run.prompt.has_embeddings();
            let room = runner.max_seq_len().saturating_sub(run.n_known());
            let most = cap.min(room).min(run.n_wanted().saturating_sub(1));
            if !is_ready || most == 0 || ready.len() == limit {
                continue;
            }
            let depth = match always {
                true => most,
                false => run.track.depth(costs, n_answers, most),
            };
            if depth > 0 {
                run.guesses.reserve(cap);
                run.guesses_by = DraftSource::Head;
                ready.push((i, depth));
            }
        }
        if ready.is_empty() {
            return Ok(());
        }
        // The rows that continue are the first of those of the step before.
        ready.sort_unstable_by_key(|&(i, depth)| (std::cmp::Reverse(depth), i));
        hidden.clear();
        ready.iter().for_each(|&(i, _)| hidden.extend_from_slice(&runs[i].hidden.state));
        match runner.begin_draft(seqs(ready, runs)) {
            Ok(()) => {}
            Err(Error::Kv(_)) => return Ok(()),
            Err(error) => return Err(error),
        }
        let result = self.rounds(runner, runs);
        runner.end_draft(seqs(&self.ready, runs).map(|(seq, _)| seq));
        result
    }

    /// Drafts a token for all that want one, then a further one for those that want two, and so on.
    fn rounds(&mut self, runner: &mut Runner, runs: &mut [Run]) -> Result<(), Error> {
        let Self { ready, hidden, drafted, .. } = self;
        let dim = runner.hidden_dim().unwrap_or(0);
        for depth in 0..ready[0].1 {
            let n = ready.iter().take_while(|(_, most)| *most > depth).count();
            hidden.truncate(n * dim);
            let row = |&(i, _): &(usize, usize)| {
                let run = &runs[i];
                let last = run.guesses.last().or(run.generated().last());
                Some((run.seq.as_ref()?, *last?))
            };
            let rows = runner.draft(ready[..n].iter().filter_map(row), depth, hidden)?;
            drafted.clear();
            drafted.extend((0..n).map(|i| likeliest(rows.row(i, 0))));
            for (i, &(run, _)) in ready[..n].iter().enumerate() {
                runs[run].guesses.push(drafted[i]);
                let next = runner.hidden(i, 0).unwrap_or_default();
                hidden[i * dim..(i + 1) * dim].copy_from_slice(next);
            }
        }
        Ok(())
    }
}

/// The sequences of the runs that are ready, and how many tokens are drafted for them.
fn seqs<'r>(
    ready: &'r [(usize, usize)],
    runs: &'r [Run],
) -> impl Iterator<Item = (&'r SeqId, usize)> + Clone {
    ready.iter().filter_map(|&(i, depth)| Some((runs[i].seq.as_ref()?, depth)))
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
        // Many answers leave less room beside the weights that all rows read.
        assert_eq!(depths(dense, 16), [0, 0, 0, 1, 4]);
        // A row that reads experts of its own costs more.
        let experts = Costs::new(&DraftBytes { step: 1000, draft: 50, experts: 600 });
        assert!((experts.row - 0.66).abs() < 1e-6);
        assert_eq!(depths(experts, 1), [0, 0, 0, 1, 4]);
    }

    #[test]
    fn an_answer_that_accepts_nothing_pauses_and_tries_again() {
        let costs = Costs { draft: 0.1, row: 0.15 };
        let mut track = Track::default();
        let mut depths = Vec::new();
        for _ in 0..120 {
            let depth = track.depth(&costs, 1, 4);
            if depth > 0 {
                track.judge(depth, 0);
            }
            depths.push(depth);
        }
        assert!(depths[0] > 1, "{depths:?}");
        assert!(depths[..8].contains(&0), "{depths:?}");
        let n_drafted = depths.iter().filter(|&&depth| depth > 0).count();
        assert!((4..=12).contains(&n_drafted), "{depths:?}");

        // Drafts that cost much are tried too, and stay where they are right.
        let costs = Costs { draft: 0.5, row: 0.4 };
        assert_eq!(costs.depth(0.75, 1, 4), 0);
        let mut track = Track::default();
        for _ in 0..8 {
            assert!(track.depth(&costs, 1, 4) > 0);
            track.judge(1, 1);
        }
        // In a step of many answers they would not.
        assert_eq!(Track::default().depth(&costs, 16, 4), 0);

        let mut track = Track::default();
        for _ in 0..50 {
            let depth = track.depth(&costs, 1, 4);
            track.judge(depth, depth);
        }
        assert_eq!(track.depth(&costs, 1, 4), 4);
    }
}
