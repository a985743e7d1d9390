//! A step of the engine: launch, collect, emit.
//!
//! | module | part |
//! |---|---|
//! | [`plan`] | the chunks of a step |
//! | [`output`] | reads the output, and lists what follows for the sequences |
//! | [`pending`] | sampled tokens that are emitted while the next step runs |
//! | [`run_ahead`] | the step after the one that runs |
//! | [`failure`] | failed steps and recovery from panics |
//! | [`publish`] | the state for observers |

mod failure;
mod output;
mod pending;
mod plan;
mod publish;
mod run_ahead;

pub(super) use plan::{PlannedChunk, StepPlan};

use super::CacheSink;
use super::masks::Masks;
use super::queue::Queue;
use super::schedule::{Scheduler, StepLimits};
use super::sequence::{RequestId, Sequence, Stage};
use super::shared::Shared;
use super::speculate::{Drafter, Speculator};
use crate::Error;
use crate::generate::generator::Scratch;
use crate::run::Runner;
use output::{OutputReader, Prefilled, Truncated, Updates};
use pending::PendingOutput;
use run_ahead::RunAhead;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// The options of the engine's thread.
pub(super) struct Settings {
    /// The maximum number of concurrent sequences.
    pub(super) max_seqs: usize,
    pub(super) limits: StepLimits,
    pub(super) cache_sink: Option<CacheSink>,
    /// The model's path, for errors.
    pub(super) path: PathBuf,
}

/// The state of the engine's thread.
pub(super) struct Core {
    pub(super) queue: Queue,
    runner: Runner,
    scheduler: Scheduler,
    speculator: Speculator,
    run_ahead: RunAhead,
    masks: Masks,
    plan: StepPlan,
    updates: Updates,
    /// Tokens that are emitted while the next step runs; `None` if the host runs the steps itself,
    /// which would only delay them.
    pending: Option<PendingOutput>,
    scratch: Scratch,
    /// The requests that end if something panics or the step fails: those of all running sequences
    /// while a step is planned, then those of the step.
    at_risk: Vec<RequestId>,
    /// Why no further step can succeed.
    lost: Option<String>,
    cache_sink: Option<CacheSink>,
    path: PathBuf,
    shared: Arc<Shared>,
}

impl Core {
    pub(super) fn new(
        mut runner: Runner,
        drafter: Option<Drafter>,
        masks: Masks,
        settings: Settings,
        shared: Arc<Shared>,
    ) -> Self {
        let Settings { max_seqs, limits, cache_sink, path } = settings;
        Self {
            queue: Queue::new(max_seqs, shared.clone()),
            scheduler: Scheduler::new(limits),
            speculator: Speculator::new(drafter),
            run_ahead: RunAhead::new(!limits.has_drafts() && runner.runs_ahead()),
            masks,
            plan: StepPlan::default(),
            updates: Updates::default(),
            pending: runner.runs_beside().then(PendingOutput::default),
            scratch: Scratch::default(),
            at_risk: Vec::new(),
            lost: None,
            cache_sink,
            path,
            runner,
            shared,
        }
    }

    /// Whether there is nothing to run and nothing to emit.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.pending.as_ref().is_none_or(PendingOutput::is_empty)
    }

    /// Drops cancelled requests, admits waiting ones, runs a step and publishes the state.
    pub(super) fn iterate(&mut self) {
        self.at_risk.clear();
        self.drop_cancelled();
        self.queue.admit(&mut self.runner);
        if !self.queue.running.is_empty() {
            self.step();
        }
        if self.queue.running.is_empty() {
            // What the last step left behind: a step that was launched ahead, and its output.
            self.run_ahead.take(&mut self.plan, &mut [], &mut self.runner, &self.shared.stats);
            self.emit_pending();
            self.remove_finished();
        }
        self.publish();
    }

    fn step(&mut self) {
        let launched = self.launch();
        // The output of the previous step is emitted while this one runs.
        self.emit_pending();
        let collected = launched.and_then(|()| self.collect());
        self.queue.out_of_pages = matches!(collected, Err(Error::Kv(_)));
        match collected {
            Ok(()) => self.apply_updates(),
            Err(error) => self.step_failed(error),
        }
    }

    /// Plans a step and launches it, unless it was launched ahead.
    fn launch(&mut self) -> Result<(), Error> {
        self.at_risk.extend(self.queue.running.iter().map(|seq| seq.key.request));
        self.at_risk.dedup();
        let stats = &self.shared.stats;
        let (seqs, runner) = (&mut self.queue.running, &mut self.runner);
        let is_launched = self.run_ahead.take(&mut self.plan, seqs, runner, stats);
        if !is_launched {
            self.speculator.propose(seqs, runner);
            self.scheduler.schedule(seqs, runner, &mut self.plan);
        }
        tracing::trace!(n_chunks = self.plan.chunks.len(), is_launched, "scheduled");
        self.at_risk.clear();
        self.at_risk.extend(self.plan.chunks.iter().map(|chunk| seqs[chunk.seq_idx].key.request));
        self.start_requests();
        match is_launched {
            true => Ok(()),
            false => self.runner.launch(self.plan.to_chunks(&self.queue.running)),
        }
    }

    /// Records the start of the requests that are in their first step.
    fn start_requests(&mut self) {
        let now = Instant::now();
        let (n_running, stats) = (self.queue.n_running(), &self.shared.stats);
        // An observer of a first token sees its request as running.
        stats.update(|stats| stats.running = n_running);
        for chunk in &self.plan.chunks {
            if let Some((_, request)) = self.queue.running_mut(chunk.seq_idx) {
                request.start(now, stats);
            }
        }
    }

    /// Collects the step and reads its output. Grammar masks are computed while the device runs, and
    /// the next step is launched ahead if possible.
    fn collect(&mut self) -> Result<(), Error> {
        let stats = &self.shared.stats;
        self.masks.begin(&mut self.queue.running, &self.plan);
        if self.runner.runs_beside() {
            self.masks.finish(&mut self.queue.running);
            let (seqs, runner) = (&mut self.queue.running, &mut self.runner);
            self.plan.request_samples(seqs, runner, &mut self.scratch);
        }
        let seqs = &self.queue.running;
        let pending = self.pending.as_ref();
        let ahead = self.run_ahead.launch(&self.plan, seqs, &mut self.runner, pending, stats);
        let rows = ahead.and_then(|()| self.runner.collect(self.plan.to_chunks(seqs)));
        tracing::trace!("collected");
        self.masks.finish(&mut self.queue.running);
        self.updates.clear();
        let mut reader = OutputReader {
            rows: rows?,
            scratch: &mut self.scratch,
            stats,
            now: Instant::now(),
            path: &self.path,
            updates: &mut self.updates,
            pending: self.pending.as_mut(),
        };
        for chunk in &self.plan.chunks {
            if let Some((seq, request)) = self.queue.running_mut(chunk.seq_idx) {
                reader.read(chunk, seq, request);
            }
        }
        self.speculator.keep_hidden(&self.plan, &mut self.queue.running, &self.runner);
        Ok(())
    }

    /// Emits the output of the previous step. Sequences stay where they are, as the running step
    /// names them by their index.
    fn emit_pending(&mut self) {
        let Some(pending) = self.pending.as_mut().filter(|pending| !pending.is_empty()) else {
            return;
        };
        // A panic of a sink ends the requests whose output is emitted, not those of the running step.
        let of_step = std::mem::take(&mut self.at_risk);
        self.at_risk.extend(pending.requests());
        self.at_risk.dedup();
        pending.emit(&mut self.queue, &self.shared.stats, &self.path);
        self.at_risk = of_step;
    }

    /// Removes the sequences and requests that emission finished.
    fn remove_finished(&mut self) {
        if let Some(pending) = &mut self.pending {
            self.queue.remove(pending.take_finished());
            for (id, error) in pending.take_failed() {
                self.fail(id, error);
            }
        }
        self.finish_all(|request| request.is_complete(), |_, _| ());
    }

    /// Applies what follows for the sequences from the step's output.
    fn apply_updates(&mut self) {
        tracing::trace!("applying the output");
        for idx in self.updates.mispredicted.drain(..) {
            let seq = &self.queue.running[idx];
            self.run_ahead.discard(seq, &mut self.runner, &self.shared.stats);
        }
        for Truncated { seq_idx, len } in self.updates.truncated.drain(..) {
            let seq = &mut self.queue.running[seq_idx];
            let kv = seq.kv.as_ref().expect("a sequence of the step has pages");
            seq.n_computed = self.runner.truncate(kv, len);
        }
        let mut forks = Vec::new();
        for Prefilled { seq_idx, answers } in self.updates.prefilled.drain(..) {
            let mut answers = answers.into_iter();
            let Some((first_idx, first)) = answers.next() else {
                self.updates.finished.push(seq_idx);
                continue;
            };
            let seq = &mut self.queue.running[seq_idx];
            let kv = seq.kv.as_ref().expect("a sequence of the step has pages");
            for (answer_idx, answer) in answers {
                tracing::trace!(request = seq.key.request, answer = answer_idx, "forked");
                forks.push(seq.fork(self.runner.fork(kv), answer_idx, answer));
            }
            seq.key.answer = first_idx;
            seq.prompt_logprobs = None;
            seq.stage = Stage::Answer(Box::new(first));
        }
        self.updates.finished.sort_unstable();
        for idx in self.updates.finished.drain(..).rev() {
            let Sequence { key, stage, last_token, .. } = self.queue.running.remove(idx);
            if let (Some(pending), Stage::Answer(answer)) = (&mut self.pending, stage) {
                pending.keep_answer(key, answer, last_token);
            }
            tracing::trace!(request = key.request, answer = key.answer, "finished");
        }
        self.queue.extend_running(forks);
        for (id, error) in std::mem::take(&mut self.updates.failed) {
            self.fail(id, error);
        }
        self.remove_finished();
    }
}
