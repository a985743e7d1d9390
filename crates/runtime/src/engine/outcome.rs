//! From the output of a step to tokens and embeddings, and to what follows for the sequences.

use super::job::{DraftSource, Job, Key, Run, Stage};
use super::late::Lates;
use super::request::{EngineEvent, PromptLogprob};
use super::schedule::{Planned, Wanted};
use super::stats::{Counters, DraftCounts, EngineStats};
use crate::Error;
use crate::generate::answer::{Answer, Choice, Next, Scratch};
use crate::run::Results;
use std::path::Path;
use std::time::Instant;

/// Tokens of an answer ahead of which no step is launched after a shortlist did not decide, so that an answer of which
/// few do runs hardly any row twice.
const WARY_TOKENS: u32 = 32;

/// The results of a step, applied once its output was read. Runs are named by their index.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Runs whose prompt is done, with the answers that continue from there.
    pub(super) begun: Vec<(usize, Vec<(usize, Answer)>)>,
    /// Runs that are over.
    pub(super) ended: Vec<usize>,
    /// Runs whose last draft tokens were rejected, with the accepted length.
    pub(super) cut: Vec<(usize, usize)>,
    /// Runs that were launched ahead with another token than the one that was chosen.
    pub(super) misfed: Vec<usize>,
    /// Jobs that an error ends.
    pub(super) failed: Vec<(u64, Error)>,
}

impl Outcome {
    /// Empties it and keeps its room.
    pub(super) fn clear(&mut self) {
        self.begun.clear();
        self.ended.clear();
        self.cut.clear();
        self.misfed.clear();
        self.failed.clear();
    }
}

/// The counts of what drafts tokens.
fn counts(stats: &mut EngineStats, source: DraftSource) -> &mut DraftCounts {
    match source {
        DraftSource::Lookup => &mut stats.drafts_by_lookup,
        DraftSource::Model => &mut stats.drafts_by_model,
        DraftSource::Head => &mut stats.drafts_by_head,
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
    pub(super) rows: Results<'a>,
    pub(super) scratch: &'a mut Scratch,
    pub(super) stats: &'a Counters,
    pub(super) now: Instant,
    /// The model's path, for errors.
    pub(super) path: &'a Path,
    pub(super) outcome: &'a mut Outcome,
    /// Where tokens go that are emitted later; `None` if they are emitted at once.
    pub(super) lates: Option<&'a mut Lates>,
}

impl Reader<'_> {
    /// Reads the output of a chunk of the step.
    pub(super) fn read(&mut self, planned: &Planned, run: &mut Run, job: &mut Job) {
        let &Planned { run: idx, chunk, wanted, .. } = planned;
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
            for (i, &id) in followers.enumerate() {
                let row = self.rows.row(ran.chunk, i)?;
                let (softmax, top_logprobs) = self.scratch.logprobs(row, k);
                let logit = row[id as usize];
                let rank = row.iter().filter(|&&other| other >= logit).count();
                logprobs.push(PromptLogprob { id, logprob: softmax.of(logit), rank, top_logprobs });
            }
        }
        if !is_done {
            return Ok(());
        }
        let last = if ran.wanted == Wanted::All { run.chunk.len() - 1 } else { 0 };
        self.stats.update(|stats| stats.prompt_tokens += run.prompt.len() as u64);
        let logprobs = std::mem::take(logprobs);
        let (cached_tokens, prefill) = (run.cached, job.prefill(self.now));
        job.emit(EngineEvent::Prompt { cached_tokens, prefill, logprobs });
        run.last_row = Some(last);
        let mut open = Vec::new();
        for (index, mut answer) in std::mem::take(answers).into_iter().enumerate() {
            let choice = answer.choose(&mut self.rows, (ran.chunk, last), self.scratch)?;
            run.last_token = None;
            let key = Key { index, ..run.key };
            if !self.take(key, choice, &mut answer, &mut run.last_token, job)? {
                open.push((index, answer));
            } else if let Some(lates) = &mut self.lates {
                lates.keep(key, Box::new(answer), None);
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
        if self.rows.runs_ahead() {
            return self.read_ahead(ran, run, job);
        }
        run.n_wary = run.n_wary.saturating_sub(1);
        let (mut n_right, mut is_over) = (0, false);
        if run.n_drafts > 0 {
            let n = run.n_drafts as u64;
            self.stats.update(|stats| {
                stats.draft_tokens += n;
                counts(stats, run.drafted_by).drafted += n;
            });
        }
        for i in 0..=run.n_drafts {
            let choice = answer.choose(&mut self.rows, (ran.chunk, i), self.scratch)?;
            // A draft token that the model would have chosen is the token whose logits come next.
            let id = choice.id();
            is_over = self.take(run.key, choice, answer, &mut run.last_token, job)?;
            if is_over || i == run.n_drafts || id != Some(run.chunk[i + 1]) {
                break;
            }
            n_right += 1;
            self.stats.update(|stats| {
                stats.accepted_tokens += 1;
                counts(stats, run.drafted_by).accepted += 1;
            });
        }
        match run.drafted_by {
            _ if run.n_drafts == 0 => {}
            DraftSource::Lookup => run.lookup.judge(run.n_drafts, n_right),
            DraftSource::Head => run.track.judge(run.n_drafts, n_right),
            DraftSource::Model => {}
        }
        run.last_row = Some(n_right);
        if is_over {
            self.outcome.ended.push(ran.idx);
        } else if n_right < run.n_drafts {
            self.outcome.cut.push((ran.idx, ran.at + 1 + n_right));
        }
        Ok(())
    }

    /// Reads the one row of an answer after which a step was launched. Where its shortlist does not decide, its token
    /// is rerun, for the whole row.
    fn read_ahead(&mut self, ran: Ran, run: &mut Run, job: &mut Job) -> Result<(), Error> {
        let Stage::Answer(answer) = &mut run.stage else { return Ok(()) };
        let fed = self.rows.fed(ran.chunk, 0);
        let Some(choice) = answer.choose_ahead(&mut self.rows, (ran.chunk, 0), self.scratch)?
        else {
            run.n_wary = WARY_TOKENS;
            self.outcome.misfed.push(ran.idx);
            self.outcome.cut.push((ran.idx, ran.at));
            return Ok(());
        };
        let id = choice.id();
        if self.take(run.key, choice, answer, &mut run.last_token, job)? {
            self.outcome.ended.push(ran.idx);
        } else if id != fed {
            self.outcome.misfed.push(ran.idx);
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
        for i in 0..n_rows {
            pooler.add(self.rows.row(ran.chunk, i)?);
        }
        if run.done == run.prompt.len() {
            let values = pooler.finish();
            let values = values.ok_or_else(|| Error::NotFinite { path: self.path.to_owned() })?;
            self.stats.update(|stats| stats.prompt_tokens += run.prompt.len() as u64);
            job.embedded(values, run.cached, (self.now, self.stats));
            self.outcome.ended.push(ran.idx);
        }
        Ok(())
    }

    /// Takes a sampled token, to be emitted now or later; returns whether it ends the answer, as far as is known.
    fn take(
        &mut self,
        key: Key,
        choice: Choice,
        answer: &mut Answer,
        last: &mut Option<Instant>,
        job: &mut Job,
    ) -> Result<bool, Error> {
        let Some(lates) = &mut self.lates else {
            let next = answer.tell(choice)?;
            return Ok(hand_out((key.index, answer, next), last, job, (self.now, self.stats)));
        };
        let is_last = choice.is_last();
        lates.push(key, choice, self.now);
        Ok(is_last)
    }
}

/// Tells of a token, and of the answer's end; returns whether it has ended.
pub(super) fn hand_out(
    (index, answer, Next { token, finished }): (usize, &mut Answer, Next),
    last: &mut Option<Instant>,
    job: &mut Job,
    (now, stats): (Instant, &Counters),
) -> bool {
    #[cfg(test)]
    super::faults::reach(super::faults::Place::Token);
    if let Some(token) = token {
        job.token(index, token, last, (now, stats));
    }
    if let Some(reason) = finished {
        job.finish((index, answer, reason), (now, stats));
    }
    finished.is_some()
}
