//! The engine's thread: schedule, run, emit.
//!
//! Whatever panics in a turn of this loop is caught around the whole turn. Nothing that may be half
//! changed is used after that: the requests of the step end, all pages are taken back, and the other
//! requests are recomputed from their prompts, as if they had been preempted.

use super::ahead::StepAhead;
use super::draft::Draft;
use super::head::Head;
use super::job::{Job, Key, Run, Stage, Submission};
use super::late::Lates;
use super::masks::Masks;
use super::outcome::{Outcome, Reader};
use super::schedule::{Most, StepPlan};
use super::stats::Counters;
use super::{CacheSink, Message, Shared};
use crate::Error;
use crate::base::panics;
use crate::generate::answer::Scratch;
use crate::run::Runner;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

mod drafts;
mod publish;

/// How the engine's thread works.
pub(super) struct Settings {
    /// The maximum number of concurrent sequences.
    pub(super) max_seqs: usize,
    /// What there may be in a step.
    pub(super) most: Most,
    /// The subscriber to changes of the prefix cache.
    pub(super) cache_sink: Option<CacheSink>,
    /// The model's path, for errors.
    pub(super) path: PathBuf,
}

/// The state of the engine's thread.
pub(super) struct Worker {
    runner: Runner,
    settings: Settings,
    draft: Option<Draft>,
    /// Drafting by the model itself.
    head: Option<Head>,
    shared: Arc<Shared>,
    jobs: HashMap<u64, Job>,
    n_jobs: u64,
    /// Requests that were not started, and answers that lost their pages.
    waiting: BTreeMap<Key, Run>,
    /// In the order of their keys.
    running: Vec<Run>,
    /// Pages ran out, and no step has succeeded since.
    is_short: bool,
    /// The jobs that a panic ends: of all that run while a step is planned, then of the step.
    in_step: Vec<u64>,
    plan: StepPlan,
    ahead: StepAhead,
    masks: Masks,
    outcome: Outcome,
    /// Tokens that are emitted when the next step is launched; `None` if the host itself runs the steps,
    /// which would only put them off.
    lates: Option<Lates>,
    scratch: Scratch,
    /// Room for a list of jobs.
    ids: Vec<u64>,
    /// When what is not finished will be cancelled.
    deadline: Option<Instant>,
    /// Why no further step can succeed.
    lost: Option<String>,
}

impl Worker {
    pub(super) fn new(
        mut runner: Runner,
        settings: Settings,
        (draft, head): (Option<Draft>, Option<Head>),
        masks: Masks,
        shared: Arc<Shared>,
    ) -> Self {
        let lates = runner.runs_beside().then(Lates::default);
        let ahead = StepAhead::new(settings.most.is_without_drafts() && runner.runs_ahead());
        Self {
            runner,
            lates,
            settings,
            draft,
            head,
            shared,
            jobs: HashMap::new(),
            n_jobs: 0,
            waiting: BTreeMap::new(),
            running: Vec::new(),
            is_short: false,
            in_step: Vec::new(),
            plan: StepPlan::default(),
            ahead,
            masks,
            outcome: Outcome::default(),
            scratch: Scratch::default(),
            ids: Vec::new(),
            deadline: None,
            lost: None,
        }
    }

    /// Works until it is asked to end. No request is left without its last event.
    pub(super) fn run(mut self, receiver: &Receiver<Message>) {
        let worked = panics::caught(|| self.work(receiver));
        if let Err(panic) = &worked {
            tracing::error!("the engine has ended: {panic}");
            // Nothing else of the state can be trusted.
            for mut job in std::mem::take(&mut self.jobs).into_values() {
                let error = Error::Step(format!("the engine has ended: {panic}"));
                self.close_job(move |stats| job.fail(error, stats));
            }
        }
        self.shared.closed.store(true, Ordering::Relaxed);
        while let Ok(message) = receiver.try_recv() {
            if let Message::Submit(submission) = message {
                self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
                self.close_job(|_| submission.refuse(Error::Ended));
            }
        }
        if let Some(reason) = worked.err().or(self.lost.take())
            && let Err(panic) = panics::caught(|| self.shared.fail(&reason))
        {
            tracing::error!("the listener for the engine's end panicked: {panic}");
        }
    }

    /// Tells a request of its end, whatever its sink does.
    fn close_job(&self, last: impl FnOnce(&Counters)) {
        if let Err(panic) = panics::caught(|| last(&self.shared.stats)) {
            tracing::error!("the sink of a request panicked at its end: {panic}");
        }
    }

    fn work(&mut self, receiver: &Receiver<Message>) {
        self.publish();
        while self.receive(receiver) {
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                self.cancel_all();
                break;
            }
            if let Err(panic) = panics::caught(|| self.turn()) {
                self.recover(&panic);
            }
            if cfg!(debug_assertions) {
                self.check();
            }
            if self.lost.is_some() {
                break;
            }
        }
        self.publish();
    }

    /// One turn of the loop, with at most one step.
    fn turn(&mut self) {
        self.in_step.clear();
        self.drop_cancelled();
        self.admit();
        if !self.running.is_empty() {
            self.step();
        }
        if self.running.is_empty() {
            self.ahead.take(&mut self.plan, &mut [], &mut self.runner, &self.shared.stats);
            self.tell();
            self.finish_told();
        }
        self.publish();
    }

    /// Continues after a panic: ends the requests of the step, and begins again with the others.
    fn recover(&mut self, panic: &str) {
        tracing::error!("a step panicked: {panic}");
        self.shared.stats.update(|stats| stats.panics += 1);
        self.masks.discard();
        self.ahead.forget(&self.shared.stats);
        self.running.iter_mut().for_each(Run::rewind);
        self.runner.reset();
        let mut ended = std::mem::take(&mut self.in_step);
        if ended.is_empty() {
            // It belongs to no request that is known, and would come again if none were ended.
            ended.extend(self.jobs.keys());
        }
        for id in ended {
            let text = format!("the step panicked, which is a bug in the engine: {panic}");
            self.fail(id, Error::Step(text));
        }
        while let Some(run) = self.running.pop() {
            self.put_back(run);
        }
        self.finish_told();
        self.is_short = false;
        self.check();
    }

    /// Asserts what holds between two turns: each run is of a job and each job has a run, lists are
    /// in order, a waiting run holds no pages, and every sequence belongs to a run.
    fn check(&mut self) {
        assert!(self.running.is_sorted_by(|a, b| a.key < b.key), "runs are in order, each once");
        assert!(self.waiting.iter().all(|(key, run)| *key == run.key && run.seq.is_none()));
        let runs = || self.running.iter().chain(self.waiting.values());
        assert!(runs().all(|run| self.jobs.contains_key(&run.key.job)), "a run is of a job");
        let is_late = |id: &u64| self.lates.iter().any(|lates| lates.jobs().any(|job| job == *id));
        let has_run = |id: &u64| runs().any(|run| run.key.job == *id) || is_late(id);
        assert!(self.jobs.keys().all(has_run), "a job that is not complete has a run");
        let n_whole = self.waiting.values().filter(|run| run.is_whole_request()).count();
        assert!(
            self.shared.waiting.load(Ordering::Relaxed) >= n_whole,
            "waiting requests are counted"
        );
        let n_seqs = self.running.iter().filter(|run| run.seq.is_some()).count();
        assert_eq!(self.runner.n_seqs(), n_seqs, "a sequence is of a run");
    }

    /// Takes what has arrived; waits when there is nothing to do. Returns false at the end.
    fn receive(&mut self, receiver: &Receiver<Message>) -> bool {
        loop {
            let is_told = self.lates.as_ref().is_none_or(Lates::is_empty);
            let is_idle = self.running.is_empty() && self.waiting.is_empty() && is_told;
            let message = if !is_idle {
                match receiver.try_recv() {
                    Ok(message) => message,
                    Err(TryRecvError::Empty) => return true,
                    Err(TryRecvError::Disconnected) => {
                        self.close(Instant::now());
                        return true;
                    }
                }
            } else if self.deadline.is_some() {
                return false;
            } else {
                match receiver.recv() {
                    Ok(message) => message,
                    Err(_) => return false,
                }
            };
            match message {
                Message::Submit(submission) => self.take(*submission),
                Message::Close(deadline) => self.close(deadline),
            }
        }
    }

    fn close(&mut self, deadline: Instant) {
        self.deadline = Some(self.deadline.map_or(deadline, |before| before.min(deadline)));
    }

    fn take(&mut self, submission: Submission) {
        self.n_jobs += 1;
        let (job, run) = submission.split(self.n_jobs);
        self.jobs.insert(self.n_jobs, job);
        self.waiting.insert(run.key, run);
    }

    /// Drops requests whose clients are gone.
    fn drop_cancelled(&mut self) {
        self.end_all(|job| job.is_cancelled(), |job, shared| job.abandon(&shared.stats));
    }

    /// Ends every request, because time has run out.
    fn cancel_all(&mut self) {
        self.fail_all(|| Error::Ended);
    }

    fn fail_all(&mut self, error: impl Fn() -> Error) {
        self.end_all(|_| true, |job, shared| job.fail(error(), &shared.stats));
    }

    fn end_all(&mut self, which: impl Fn(&Job) -> bool, last: impl Fn(&mut Job, &Shared)) {
        let mut ids = std::mem::take(&mut self.ids);
        ids.extend(self.jobs.iter().filter(|(_, job)| which(job)).map(|(id, _)| *id));
        ids.drain(..).for_each(|id| self.end(id, &last));
        self.ids = ids;
    }

    fn fail(&mut self, id: u64, error: Error) {
        self.end(id, |job, shared| job.fail(error, &shared.stats));
    }

    /// Ends a job, `last` of all by telling of it, and drops its runs, which frees their pages. What
    /// panics in the sink of a job that has ended concerns no other.
    fn end(&mut self, id: u64, last: impl FnOnce(&mut Job, &Shared)) {
        let Some(mut job) = self.jobs.remove(&id) else { return };
        self.lates.iter_mut().for_each(|lates| lates.forget(id));
        let shared = &*self.shared;
        let told = panics::caught(|| last(&mut job, shared));
        if let Err(panic) = told.and(panics::caught(|| drop(job))) {
            tracing::error!("the sink of a request panicked at its end: {panic}");
        }
        self.running.retain(|run| run.key.job != id);
        self.waiting.retain(|key, run| {
            let stays = key.job != id;
            if !stays && run.is_whole_request() {
                shared.waiting.fetch_sub(1, Ordering::Relaxed);
            }
            stays
        });
    }

    /// Moves runs that wait to those that run, in their order, as far as there is room. A preempted one
    /// does not come back before the others have got on, or it would be preempted again.
    fn admit(&mut self) {
        if self.is_short && !self.running.is_empty() {
            return;
        }
        let mut n_answers: usize = self.running.iter().map(Run::n_answers).sum();
        while let Some(first) = self.waiting.first_entry() {
            let run = first.get();
            n_answers += run.n_answers();
            // Each that runs may soon need a page more.
            let (len, spare) = (run.n_known() + 1, self.running.len());
            let is_alone = self.running.is_empty();
            if n_answers > self.settings.max_seqs || !(is_alone || self.runner.has_room(len, spare))
            {
                break;
            }
            let run = first.remove();
            if run.is_whole_request() {
                self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            }
            let at = self.running.partition_point(|other| other.key < run.key);
            self.running.insert(at, run);
        }
    }

    /// Runs one step. Where pages run out, the last in order loses its own and waits.
    fn step(&mut self) {
        self.in_step.extend(self.running.iter().map(|run| run.key.job));
        self.in_step.dedup();
        let Self { ahead, plan, running, runner, shared, .. } = self;
        let is_launched = ahead.take(plan, running, runner, &shared.stats);
        if !is_launched {
            self.draft();
            self.plan.fill(&mut self.running, &mut self.runner, &self.settings.most);
        }
        #[cfg(test)]
        super::faults::reach(super::faults::Place::Plan);
        self.in_step.clear();
        let Self { plan, running, in_step, .. } = self;
        in_step.extend(plan.planned.iter().map(|planned| running[planned.run].key.job));
        self.start();
        let mut launched = Ok(());
        if !is_launched {
            launched = self.runner.launch(self.plan.chunks(&self.running));
        }
        // The results of the previous step are emitted while this one runs.
        self.tell();
        self.masks.begin(&mut self.running, &self.plan.planned);
        let Self {
            running,
            runner,
            plan,
            scratch,
            jobs,
            shared,
            masks,
            lates,
            settings,
            ahead,
            ..
        } = self;
        let result = match launched {
            Ok(()) => {
                if runner.runs_beside() {
                    masks.finish(running);
                    plan.want(running, runner, scratch);
                }
                let launched = ahead.launch(plan, (running, runner), lates.as_ref(), &shared.stats);
                launched.and_then(|()| runner.collect(plan.chunks(running)))
            }
            Err(error) => Err(error),
        };
        #[cfg(test)]
        super::faults::reach(super::faults::Place::Run);
        masks.finish(running);
        self.is_short = matches!(result, Err(Error::Kv(_)));
        let rows = match result {
            Ok(rows) => rows,
            Err(error) => return self.cannot_step(error),
        };
        self.outcome.clear();
        let (now, outcome, lates) = (Instant::now(), &mut self.outcome, lates.as_mut());
        let (stats, path) = (&shared.stats, &*settings.path);
        let mut reader = Reader { rows, scratch, stats, now, path, outcome, lates };
        for planned in &plan.planned {
            let run = &mut running[planned.run];
            let is_over = reader.lates.as_ref().is_some_and(|lates| lates.is_over(run.key));
            if let Some(job) = jobs.get_mut(&run.key.job).filter(|_| !is_over) {
                reader.read(planned, run, job);
            }
        }
        self.keep_hidden();
        self.settle();
    }

    /// Continues after a step that failed.
    fn cannot_step(&mut self, error: Error) {
        let n_running = self.running.len();
        self.finish_told();
        match error {
            // A run that has ended meanwhile has released its pages.
            Error::Kv(_) if self.running.len() < n_running => {}
            Error::Kv(_) if n_running > 1 => self.preempt(),
            error if error.has_lost_model() => self.lose(&error.to_string()),
            error => self.fail_step(&error.to_string()),
        }
    }

    /// Emits the results of the previous step. Runs stay where they are; those that are over are noted.
    fn tell(&mut self) {
        let Self { lates: Some(lates), in_step, jobs, running, waiting, .. } = self else { return };
        if lates.is_empty() {
            return;
        }
        // A panic of a sink is attributed to the step whose events it gets.
        let launched = std::mem::take(in_step);
        in_step.extend(lates.jobs());
        in_step.dedup();
        let with = (&self.shared.stats, &*self.settings.path);
        lates.tell(jobs, (running, waiting), with);
        self.in_step = launched;
    }

    /// Drops the runs that are over after what was emitted, and those of jobs that are complete.
    fn finish_told(&mut self) {
        let Self { lates, running, waiting, .. } = self;
        let failed = lates.as_mut().map(|lates| lates.finish(running, waiting));
        for (id, error) in failed.into_iter().flatten() {
            self.fail(id, error);
        }
        self.end_all(Job::is_done, |_, _| ());
    }

    /// Requests that are being worked on.
    fn n_running(&self) -> usize {
        self.running.chunk_by(|a, b| a.key.job == b.key.job).count()
    }

    /// Notes when requests were started.
    fn start(&mut self) {
        let now = Instant::now();
        let (n_running, stats) = (self.n_running(), &self.shared.stats);
        // An observer of a first token sees its request as running.
        stats.update(|stats| stats.running = n_running);
        for planned in &self.plan.planned {
            let key = self.running[planned.run].key;
            if let Some(job) = self.jobs.get_mut(&key.job) {
                job.start(now, stats);
            }
        }
    }

    /// Preempts the lowest-priority sequence: takes it out of the step and frees its pages; it will be
    /// recomputed when there is room. So the first in order always makes progress.
    fn preempt(&mut self) {
        let in_step = |run: &Run| run.seq.is_some();
        let last = self.running.iter().rposition(in_step).unwrap_or(self.running.len() - 1);
        let mut run = self.running.remove(last);
        run.rewind();
        tracing::debug!(job = run.key.job, index = run.key.index, "preempted");
        self.shared.stats.update(|stats| stats.preemptions += 1);
        self.put_back(run);
    }

    /// Lets a run that has no pages wait.
    fn put_back(&mut self, run: Run) {
        if run.is_whole_request() {
            self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        }
        self.waiting.insert(run.key, run);
    }

    /// Ends the requests of the step that failed.
    fn fail_step(&mut self, reason: &str) {
        let mut ids = std::mem::take(&mut self.in_step);
        ids.drain(..).for_each(|id| self.fail(id, Error::Step(reason.to_owned())));
        self.in_step = ids;
    }

    /// Ends every request, as no further step can succeed, and then the engine.
    fn lose(&mut self, reason: &str) {
        tracing::error!("the engine has ended: {reason}");
        self.shared.closed.store(true, Ordering::Relaxed);
        self.fail_all(|| Error::Step(reason.to_owned()));
        self.lost = Some(reason.to_owned());
    }

    /// Applies the results of the step.
    fn settle(&mut self) {
        #[cfg(test)]
        super::faults::reach(super::faults::Place::Settle);
        let mut outcome = std::mem::take(&mut self.outcome);
        for i in outcome.misfed.drain(..) {
            self.ahead.give_up(&self.running[i], &mut self.runner, &self.shared.stats);
        }
        for (i, len) in outcome.cut.drain(..) {
            let run = &mut self.running[i];
            let seq = run.seq.as_ref().expect("it was just run");
            run.done = self.runner.truncate(seq, len);
        }
        let mut new_runs = Vec::new();
        for (i, answers) in outcome.begun.drain(..) {
            let mut answers = answers.into_iter();
            let Some((index, first)) = answers.next() else {
                outcome.ended.push(i);
                continue;
            };
            let run = &mut self.running[i];
            let seq = run.seq.as_ref().expect("it was just run");
            for (index, answer) in answers {
                #[cfg(test)]
                super::faults::reach(super::faults::Place::Fork);
                let key = Key { index, ..run.key };
                let stage = Stage::Answer(Box::new(answer));
                new_runs.push(Run {
                    seq: Some(self.runner.fork(seq)),
                    done: run.done,
                    cached: run.cached,
                    last_token: run.last_token,
                    hidden: run.hidden.clone(),
                    ..Run::new(key, run.prompt.clone(), stage)
                });
            }
            run.key.index = index;
            run.prompt_logprobs = None;
            run.stage = Stage::Answer(Box::new(first));
        }
        outcome.ended.sort_unstable();
        for i in outcome.ended.drain(..).rev() {
            let run = self.running.remove(i);
            if let (Some(lates), Stage::Answer(answer)) = (&mut self.lates, run.stage) {
                lates.keep(run.key, answer, run.last_token);
            }
            #[cfg(test)]
            super::faults::reach(super::faults::Place::Ended);
        }
        self.running.extend(new_runs);
        self.running.sort_unstable_by_key(|run| run.key);
        for (id, error) in outcome.failed.drain(..) {
            self.fail(id, error);
        }
        self.finish_told();
        self.outcome = outcome;
    }
}

#[cfg(test)]
mod tests;
