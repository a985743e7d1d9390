//! Reads a step's output: from logits to sampled tokens and embeddings, and the changes that follow
//! for the sequences.

use super::pending::PendingOutput;
use super::plan::PlannedChunk;
use crate::Error;
use crate::engine::active::ActiveRequest;
use crate::engine::request::{EngineEvent, PromptLogprob};
use crate::engine::sequence::{RequestId, SeqKey, Sequence, Stage};
use crate::engine::stats::Counters;
use crate::generate::generator::{Generator, Sample, Scratch};
use crate::run::{Outputs, Results};
use std::path::Path;
use std::time::Instant;

/// After a shortlist miss, no step is launched ahead for this many tokens: sequences that miss often
/// would recompute most rows.
const MISS_PAUSE: u32 = 32;

/// The changes to sequences that follow from a step's output. They are applied after all of it is
/// read; sequences are named by their index.
#[derive(Debug, Default)]
pub(super) struct Updates {
    /// Sequences whose prompt is done.
    pub(super) prefilled: Vec<Prefilled>,
    /// Sequences that are complete.
    pub(super) finished: Vec<usize>,
    /// Sequences that keep only their first tokens.
    pub(super) truncated: Vec<Truncated>,
    /// Sequences that were launched ahead with another token than the sampled one.
    pub(super) mispredicted: Vec<usize>,
    /// Requests that end with an error.
    pub(super) failed: Vec<(RequestId, Error)>,
}

/// A sequence whose prompt is done.
#[derive(Debug)]
pub(super) struct Prefilled {
    pub(super) seq_idx: usize,
    /// The answers that continue, with their numbers.
    pub(super) answers: Vec<(usize, Generator)>,
}

/// A sequence whose rows from `len` on are rejected.
#[derive(Debug)]
pub(super) struct Truncated {
    pub(super) seq_idx: usize,
    pub(super) len: usize,
}

impl Updates {
    /// Removes all, and keeps the allocations.
    pub(super) fn clear(&mut self) {
        self.prefilled.clear();
        self.finished.clear();
        self.truncated.clear();
        self.mispredicted.clear();
        self.failed.clear();
    }
}

/// Reads the chunks of a collected step.
pub(super) struct OutputReader<'a> {
    pub(super) rows: Results<'a>,
    pub(super) scratch: &'a mut Scratch,
    pub(super) stats: &'a Counters,
    /// When the step was collected.
    pub(super) now: Instant,
    /// The model's path, for errors.
    pub(super) path: &'a Path,
    pub(super) updates: &'a mut Updates,
    /// Where sampled tokens go; `None` if they are emitted at once.
    pub(super) pending: Option<&'a mut PendingOutput>,
}

impl OutputReader<'_> {
    /// Reads the output of a chunk.
    pub(super) fn read(
        &mut self,
        chunk: &PlannedChunk,
        seq: &mut Sequence,
        request: &mut ActiveRequest,
    ) {
        if self.pending.as_ref().is_some_and(|pending| pending.is_finished(seq.key)) {
            return;
        }
        let start = seq.n_computed;
        seq.n_computed += seq.scheduled.len();
        let SeqKey { request: id, answer, .. } = seq.key;
        tracing::trace!(request = id, answer, n_computed = seq.n_computed, "reading the output");
        let read = match &seq.stage {
            Stage::Prompt { .. } => self.read_prefill(chunk, start, seq, request),
            Stage::Answer(_) if self.rows.runs_ahead() => {
                self.read_ahead(chunk, start, seq, request)
            }
            Stage::Answer(_) => self.read_decode(chunk, start, seq, request),
            Stage::Embedding(_) => self.read_embedding(chunk, seq, request),
        };
        if let Err(error) = read {
            self.updates.failed.push((seq.key.request, error.of_model(self.path)));
        }
    }

    /// Reads prefill rows, and samples the first token of each answer after the last one.
    fn read_prefill(
        &mut self,
        chunk: &PlannedChunk,
        start: usize,
        seq: &mut Sequence,
        request: &mut ActiveRequest,
    ) -> Result<(), Error> {
        let is_done = !seq.in_prefill();
        let Stage::Prompt { answers, logprobs } = &mut seq.stage else { return Ok(()) };
        if let Some(k) = seq.prompt_logprobs {
            let next_tokens = seq.prompt.rows().ids()[start + 1..].iter();
            for (i, &id) in next_tokens.take(seq.scheduled.len()).enumerate() {
                let row = self.rows.row(chunk.batch_idx, i)?;
                let (softmax, top_logprobs) = self.scratch.logprobs(row, k);
                let logit = row[id as usize];
                let rank = row.iter().filter(|&&other| other >= logit).count();
                logprobs.push(PromptLogprob { id, logprob: softmax.of(logit), rank, top_logprobs });
            }
        }
        if !is_done {
            return Ok(());
        }
        let row = if chunk.outputs == Outputs::All { seq.scheduled.len() - 1 } else { 0 };
        self.stats.update(|stats| stats.prompt_tokens += seq.prompt.len() as u64);
        request.emit(EngineEvent::Prompt {
            cached_tokens: seq.n_cached,
            prefill: request.prefill_time(self.now),
            logprobs: std::mem::take(logprobs),
        });
        seq.draft.accepted_row = Some(row);
        let mut open = Vec::new();
        for (answer_idx, mut answer) in std::mem::take(answers).into_iter().enumerate() {
            let sample = answer.sample(&mut self.rows, chunk.batch_idx, row, self.scratch)?;
            seq.last_token = None;
            let key = SeqKey { answer: answer_idx, ..seq.key };
            if !self.accept(key, sample, &mut answer, &mut seq.last_token, request)? {
                open.push((answer_idx, answer));
            } else if let Some(pending) = &mut self.pending {
                pending.keep_answer(key, Box::new(answer), None);
            }
        }
        let seq_idx = chunk.seq_idx;
        self.updates.prefilled.push(Prefilled { seq_idx, answers: open });
        Ok(())
    }

    /// Reads decode rows: samples a token from each until one differs from the next draft token.
    fn read_decode(
        &mut self,
        chunk: &PlannedChunk,
        start: usize,
        seq: &mut Sequence,
        request: &mut ActiveRequest,
    ) -> Result<(), Error> {
        let Stage::Answer(answer) = &mut seq.stage else { return Ok(()) };
        if chunk.outputs == Outputs::None {
            return Ok(());
        }
        seq.run_ahead_pause = seq.run_ahead_pause.saturating_sub(1);
        seq.draft.count_drafted(seq.n_drafts, self.stats);
        let (mut n_accepted, mut is_finished) = (0, false);
        for row in 0..=seq.n_drafts {
            let sample = answer.sample(&mut self.rows, chunk.batch_idx, row, self.scratch)?;
            let id = sample.id();
            is_finished = self.accept(seq.key, sample, answer, &mut seq.last_token, request)?;
            // The next row follows the draft token, so it counts only if that was sampled.
            if is_finished || row == seq.n_drafts || id != Some(seq.scheduled[row + 1]) {
                break;
            }
            n_accepted += 1;
            seq.draft.count_accepted(self.stats);
        }
        seq.draft.judge(seq.n_drafts, n_accepted);
        seq.draft.accepted_row = Some(n_accepted);
        let seq_idx = chunk.seq_idx;
        if is_finished {
            self.updates.finished.push(seq_idx);
        } else if n_accepted < seq.n_drafts {
            let len = start + 1 + n_accepted;
            self.updates.truncated.push(Truncated { seq_idx, len });
        }
        Ok(())
    }

    /// Reads the decode row of a sequence while the next step runs. Only its shortlist is left; if
    /// that does not decide, the row is run again for all its logits.
    fn read_ahead(
        &mut self,
        chunk: &PlannedChunk,
        start: usize,
        seq: &mut Sequence,
        request: &mut ActiveRequest,
    ) -> Result<(), Error> {
        let Stage::Answer(answer) = &mut seq.stage else { return Ok(()) };
        if chunk.outputs == Outputs::None {
            return Ok(());
        }
        let (seq_idx, batch_idx) = (chunk.seq_idx, chunk.batch_idx);
        let fed = self.rows.fed(batch_idx, 0);
        let Some(sample) = answer.sample_ahead(&mut self.rows, batch_idx, 0, self.scratch)? else {
            seq.run_ahead_pause = MISS_PAUSE;
            self.updates.mispredicted.push(seq_idx);
            self.updates.truncated.push(Truncated { seq_idx, len: start });
            return Ok(());
        };
        let id = sample.id();
        if self.accept(seq.key, sample, answer, &mut seq.last_token, request)? {
            self.updates.finished.push(seq_idx);
        } else if id != fed {
            self.updates.mispredicted.push(seq_idx);
        }
        Ok(())
    }

    /// Pools the hidden states of prefill rows.
    fn read_embedding(
        &mut self,
        chunk: &PlannedChunk,
        seq: &mut Sequence,
        request: &mut ActiveRequest,
    ) -> Result<(), Error> {
        let is_done = !seq.in_prefill();
        let Stage::Embedding(pooler) = &mut seq.stage else { return Ok(()) };
        let n_rows = match chunk.outputs {
            Outputs::None => 0,
            Outputs::At(_) | Outputs::Last => 1,
            Outputs::All => seq.scheduled.len(),
        };
        for i in 0..n_rows {
            pooler.add(self.rows.row(chunk.batch_idx, i)?);
        }
        if is_done {
            let values = pooler.finish();
            let values = values.ok_or_else(|| Error::NotFinite { path: self.path.to_owned() })?;
            self.stats.update(|stats| stats.prompt_tokens += seq.prompt.len() as u64);
            request.emit_embedding(values, seq.n_cached, self.now, self.stats);
            self.updates.finished.push(chunk.seq_idx);
        }
        Ok(())
    }

    /// Emits a sampled token, or leaves it pending. Returns whether it ends the answer, as far as
    /// that is known without its text.
    fn accept(
        &mut self,
        key: SeqKey,
        sample: Sample,
        answer: &mut Generator,
        last_token: &mut Option<Instant>,
        request: &mut ActiveRequest,
    ) -> Result<bool, Error> {
        let Some(pending) = &mut self.pending else {
            let output = answer.detokenize(sample)?;
            return Ok(
                request.emit_output(key.answer, answer, output, last_token, self.now, self.stats)
            );
        };
        let is_last = sample.is_last();
        pending.push(key, sample, self.now);
        Ok(is_last)
    }
}
