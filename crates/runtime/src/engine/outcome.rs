//! From the output of a step to tokens and embeddings, and to what follows for the sequences.

use super::job::{Job, Run, Stage};
use super::request::{EngineEvent, PromptLogprob};
use super::schedule::{Planned, Wanted};
use super::stats::Counters;
use crate::Error;
use crate::generate::answer::{Answer, Next, Scratch};
use crate::run::OutputRows;
use std::path::Path;
use std::time::Instant;

/// What a step led to, to be done once its output was read. Runs are named by their index.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Runs whose prompt is done, with the answers that go on from there.
    pub(super) begun: Vec<(usize, Vec<(usize, Answer)>)>,
    /// Runs that are over.
    pub(super) ended: Vec<usize>,
    /// Runs whose last guesses were wrong, with the length that is right.
    pub(super) cut: Vec<(usize, usize)>,
    /// Jobs that an error ends.
    pub(super) failed: Vec<(u64, Error)>,
}

impl Outcome {
    /// Empties it and keeps its room.
    pub(super) fn clear(&mut self) {
        self.begun.clear();
        self.ended.clear();
        self.cut.clear();
        self.failed.clear();
    }
}

/// A chunk that was run.
#[derive(Debug, Clone, Copy)]
struct Ran {
    /// Its number in the step.
    chunk: usize,
    /// The index of its run.
    idx: usize,
    /// Tokens of the run's sequence before it.
    at: usize,
    wanted: Wanted,
}

/// What a chunk's output is read with.
pub(super) struct Reader<'a> {
    pub(super) rows: OutputRows<'a>,
    pub(super) scratch: &'a mut Scratch,
    pub(super) stats: &'a Counters,
    pub(super) now: Instant,
    /// The model's path, for errors.
    pub(super) path: &'a Path,
    pub(super) outcome: &'a mut Outcome,
}

impl Reader<'_> {
    /// Reads the output of the step's chunk number `chunk`.
    pub(super) fn read(&mut self, chunk: usize, planned: &Planned, run: &mut Run, job: &mut Job) {
        let &Planned { run: idx, wanted, .. } = planned;
        let ran = Ran { chunk, idx, at: run.done, wanted };
        run.done += run.chunk.len();
        #[cfg(test)]
        super::faults::reach(super::faults::Place::Rows);
        let read = match &run.stage {
            Stage::Prompt { .. } => self.read_prompt(ran, run, job),
            Stage::Answer(_) => self.read_answer(ran, run, job),
            Stage::Embedding(_) => self.read_embedding(ran, run, job),
        };
        if let Err(error) = read {
            self.outcome.failed.push((run.key.job, error.of_model(self.path)));
        }
    }

    fn read_prompt(&mut self, ran: Ran, run: &mut Run, job: &mut Job) -> Result<(), Error> {
        let is_done = run.done == run.prompt.len();
        let Stage::Prompt { answers, logprobs } = &mut run.stage else { return Ok(()) };
        if let Some(k) = run.prompt_logprobs {
            let followers = run.prompt.rows().ids()[ran.at + 1..].iter().take(run.chunk.len());
            logprobs.extend(followers.enumerate().map(|(i, &id)| {
                let row = self.rows.row(ran.chunk, i);
                let (softmax, top_logprobs) = self.scratch.logprobs(row, k);
                let logit = row[id as usize];
                let rank = row.iter().filter(|&&other| other >= logit).count();
                PromptLogprob { id, logprob: softmax.of(logit), rank, top_logprobs }
            }));
        }
        if !is_done {
            return Ok(());
        }
        let last = if ran.wanted == Wanted::All { run.chunk.len() - 1 } else { 0 };
        let row = self.rows.row(ran.chunk, last);
        self.stats.update(|stats| stats.prompt_tokens += run.prompt.len() as u64);
        let logprobs = std::mem::take(logprobs);
        job.emit(EngineEvent::Prompt { cached_tokens: run.cached, logprobs });
        let mut open = Vec::new();
        for (index, mut answer) in std::mem::take(answers).into_iter().enumerate() {
            let next = answer.next(row, self.scratch)?;
            run.last_token = None;
            if !self.tell(index, &mut answer, next, &mut run.last_token, job) {
                open.push((index, answer));
            }
        }
        self.outcome.begun.push((ran.idx, open));
        Ok(())
    }

    fn read_answer(&mut self, ran: Ran, run: &mut Run, job: &mut Job) -> Result<(), Error> {
        let Stage::Answer(answer) = &mut run.stage else { return Ok(()) };
        if ran.wanted == Wanted::None {
            return Ok(());
        }
        let (mut n_right, mut is_over) = (0, false);
        if run.n_drafts > 0 {
            self.stats.update(|stats| stats.draft_tokens += run.n_drafts as u64);
        }
        for i in 0..=run.n_drafts {
            let next = answer.next(self.rows.row(ran.chunk, i), self.scratch)?;
            // A draft token that the model would have chosen is the token whose logits come next.
            let is_right = next.finished.is_none()
                && i < run.n_drafts
                && next.token.as_ref().is_some_and(|token| token.id == run.chunk[i + 1]);
            if is_right {
                n_right += 1;
                self.stats.update(|stats| stats.accepted_tokens += 1);
            }
            is_over = self.tell(run.key.index, answer, next, &mut run.last_token, job);
            if !is_right {
                break;
            }
        }
        if run.n_drafts > 0 {
            run.lookup.judge(run.n_drafts, n_right);
        }
        if is_over {
            self.outcome.ended.push(ran.idx);
        } else if n_right < run.n_drafts {
            self.outcome.cut.push((ran.idx, ran.at + 1 + n_right));
        }
        Ok(())
    }

    fn read_embedding(&mut self, ran: Ran, run: &mut Run, job: &mut Job) -> Result<(), Error> {
        let Stage::Embedding(pooler) = &mut run.stage else { return Ok(()) };
        let n_rows = match ran.wanted {
            Wanted::None => 0,
            Wanted::First | Wanted::Last => 1,
            Wanted::All => run.chunk.len(),
        };
        (0..n_rows).for_each(|i| pooler.add(self.rows.row(ran.chunk, i)));
        if run.done == run.prompt.len() {
            let values = pooler.finish();
            let values = values.ok_or_else(|| Error::NotFinite { path: self.path.to_owned() })?;
            self.stats.update(|stats| stats.prompt_tokens += run.prompt.len() as u64);
            job.embedded(values, run.cached, (self.now, self.stats));
            self.outcome.ended.push(ran.idx);
        }
        Ok(())
    }

    /// Tells of a token, and of the answer's end; returns whether it has ended.
    fn tell(
        &mut self,
        index: usize,
        answer: &mut Answer,
        Next { token, finished }: Next,
        last: &mut Option<Instant>,
        job: &mut Job,
    ) -> bool {
        #[cfg(test)]
        super::faults::reach(super::faults::Place::Token);
        if let Some(token) = token {
            job.token(index, token, last, (self.now, self.stats));
        }
        if let Some(reason) = finished {
            job.finish((index, answer, reason), (self.now, self.stats));
        }
        finished.is_some()
    }
}
