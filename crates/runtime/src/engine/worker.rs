//! The engine's thread: schedule, run, hand out.

use super::draft::Draft;
use super::job::{Job, Key, Run, Stage, Submission};
use super::masks::Masks;
use super::outcome::{Outcome, Reader};
use super::schedule::{Planned, Wanted, plan};
use super::{CacheSink, Message, Shared};
use crate::Error;
use crate::answer::Scratch;
use crate::runner::{Chunk, Outputs, Runner};
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

/// How the engine's thread works.
pub(super) struct Settings {
    /// The most answers at once.
    pub(super) max_seqs: usize,
    /// The most tokens that are guessed ahead.
    pub(super) max_drafts: usize,
    /// The most tokens of prompts in a step that also generates.
    pub(super) prompt_tokens: usize,
    /// Who is told of the changes of the prefix cache.
    pub(super) cache_sink: Option<CacheSink>,
}

/// The state of the engine's thread.
pub(super) struct Worker {
    runner: Runner,
    settings: Settings,
    draft: Option<Draft>,
    shared: Arc<Shared>,
    jobs: HashMap<u64, Job>,
    n_jobs: u64,
    /// Requests that were not started, and answers that lost their pages.
    waiting: BTreeMap<Key, Run>,
    /// In the order of their keys.
    running: Vec<Run>,
    /// Pages ran out, and no step has succeeded since.
    is_short: bool,
    planned: Vec<Planned>,
    scratch: Scratch,
    /// When what is not finished will be cancelled.
    deadline: Option<Instant>,
}

impl Worker {
    pub(super) fn new(
        runner: Runner,
        settings: Settings,
        draft: Option<Draft>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            runner,
            settings,
            draft,
            shared,
            jobs: HashMap::new(),
            n_jobs: 0,
            waiting: BTreeMap::new(),
            running: Vec::new(),
            is_short: false,
            planned: Vec::new(),
            scratch: Scratch::default(),
            deadline: None,
        }
    }

    /// Works until it is told to end.
    pub(super) fn run(mut self, receiver: &Receiver<Message>) {
        self.publish();
        while self.receive(receiver) {
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                self.cancel_all();
                break;
            }
            self.drop_cancelled();
            self.admit();
            self.step();
            self.publish();
        }
        self.publish();
    }

    /// Takes what has arrived; waits when there is nothing to do. Returns false at the end.
    fn receive(&mut self, receiver: &Receiver<Message>) -> bool {
        loop {
            let is_idle = self.running.is_empty() && self.waiting.is_empty();
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

    /// Lets go of requests that nobody waits for.
    fn drop_cancelled(&mut self) {
        let cancelled: Vec<u64> =
            self.jobs.iter().filter(|(_, job)| job.is_cancelled()).map(|(id, _)| *id).collect();
        for id in cancelled {
            if let Some(job) = self.jobs.remove(&id) {
                job.abandon(&mut self.shared.stats());
            }
            self.drop_runs(id);
        }
    }

    /// Drops a job's runs and frees their pages.
    fn drop_runs(&mut self, id: u64) {
        let waiting: Vec<Key> = self.waiting.keys().filter(|key| key.job == id).copied().collect();
        for key in waiting {
            if let Some(run) = self.waiting.remove(&key)
                && run.is_whole_request()
            {
                self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let runner = &mut self.runner;
        self.running.retain_mut(|run| {
            let stays = run.key.job != id;
            if !stays && let Some(seq) = run.seq.take() {
                runner.remove(seq);
            }
            stays
        });
    }

    /// Ends every request, for want of time.
    fn cancel_all(&mut self) {
        let ids: Vec<u64> = self.jobs.keys().copied().collect();
        for id in ids {
            self.fail(id, Error::Ended);
        }
    }

    fn fail(&mut self, id: u64, error: Error) {
        if let Some(mut job) = self.jobs.remove(&id) {
            job.fail(error, &mut self.shared.stats());
        }
        self.drop_runs(id);
    }

    /// Moves those who wait to those who run, in their order, as far as there is room. Who has lost
    /// its pages does not come back before the others have got on, or it would lose them again.
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
        if self.running.is_empty() {
            return;
        }
        if let Some(draft) = &mut self.draft
            && let Err(error) = draft.guess(&mut self.running)
        {
            tracing::error!("the draft model failed, and is not used any more: {error}");
            self.draft = None;
        }
        let most = (self.settings.max_drafts, self.settings.prompt_tokens);
        plan(&mut self.running, &mut self.runner, most, &mut self.planned);
        self.start();
        let mut masks = Masks::take(&mut self.running, &self.planned);
        let Self { running, runner, planned, scratch, jobs, shared, .. } = self;
        let chunk = |planned: &Planned| {
            let run = &running[planned.run];
            let outputs = match planned.wanted {
                Wanted::None => Outputs::None,
                Wanted::First => Outputs::At(&[0]),
                Wanted::Last => Outputs::Last,
                Wanted::All => Outputs::All,
            };
            let seq = run.seq.as_ref().expect("a run that is planned has a sequence");
            Chunk { seq, tokens: &run.chunk, role: planned.role, outputs }
        };
        let chunks: Vec<Chunk<'_>> = planned.iter().map(chunk).collect();
        let all = &chunks;
        // The braces move the runner in, so that the output may outlive the closure.
        let step = AssertUnwindSafe(move || { runner }.step(all));
        let result = std::thread::scope(|scope| {
            if !masks.is_empty() {
                scope.spawn(|| masks.compute());
            }
            catch_unwind(step)
        });
        masks.put_back(running);
        self.is_short = matches!(result, Ok(Err(Error::Kv(_))));
        let rows = match result {
            Ok(Ok(rows)) => rows,
            Ok(Err(Error::Kv(_))) if running.len() > 1 => return self.preempt(),
            Ok(Err(error)) => return self.fail_step(&error.to_string()),
            Err(panic) => {
                let what = panic.downcast_ref::<String>().map_or("a panic", String::as_str);
                tracing::error!("a step panicked: {what}");
                return self.fail_step("the step panicked; this is a defect of the engine");
            }
        };
        let mut stats = shared.stats();
        let (now, outcome) = (Instant::now(), Outcome::default());
        let mut reader = Reader { rows, scratch, stats: &mut stats, now, outcome };
        for (i, planned) in planned.iter().enumerate() {
            let run = &mut running[planned.run];
            if let Some(job) = jobs.get_mut(&run.key.job) {
                reader.read(i, planned, run, job);
            }
        }
        let outcome = reader.outcome;
        drop(stats);
        self.settle(outcome);
    }

    /// Requests that are being worked on.
    fn n_running(&self) -> usize {
        self.running.chunk_by(|a, b| a.key.job == b.key.job).count()
    }

    /// Notes when requests were started.
    fn start(&mut self) {
        let now = Instant::now();
        let mut stats = self.shared.stats();
        // Who hears of a first token finds that its request runs.
        stats.running = self.n_running();
        for planned in &self.planned {
            let key = self.running[planned.run].key;
            if let Some(job) = self.jobs.get_mut(&key.job) {
                job.start(now, &mut stats);
            }
        }
    }

    /// Takes the last in order out of the step, and its pages; it will be run again when there is
    /// room. So the first in order always gets on.
    fn preempt(&mut self) {
        let in_step = |run: &Run| run.seq.is_some();
        let last = self.running.iter().rposition(in_step).unwrap_or(self.running.len() - 1);
        let mut run = self.running.remove(last);
        if let Some(seq) = run.seq.take() {
            self.runner.remove(seq);
        }
        (run.done, run.cached) = (0, 0);
        match &mut run.stage {
            Stage::Prompt { logprobs, .. } => logprobs.clear(),
            Stage::Embedding(pooler) => pooler.clear(),
            Stage::Answer(_) => {}
        }
        if run.is_whole_request() {
            self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        }
        tracing::debug!(job = run.key.job, index = run.key.index, "preempted");
        self.shared.stats().preemptions += 1;
        self.waiting.insert(run.key, run);
    }

    /// Ends the requests of the step that failed.
    fn fail_step(&mut self, reason: &str) {
        let mut ids: Vec<u64> =
            self.planned.iter().map(|planned| self.running[planned.run].key.job).collect();
        ids.dedup();
        for id in ids {
            self.fail(id, Error::Step(reason.to_owned()));
        }
    }

    /// Does what the step led to.
    fn settle(&mut self, outcome: Outcome) {
        let Outcome { begun, mut ended, failed, cut } = outcome;
        for (i, len) in cut {
            let run = &mut self.running[i];
            let seq = run.seq.as_ref().expect("it was just run");
            run.done = self.runner.truncate(seq, len);
        }
        let mut new_runs = Vec::new();
        for (i, answers) in begun {
            let mut answers = answers.into_iter();
            let Some((index, first)) = answers.next() else {
                ended.push(i);
                continue;
            };
            let run = &mut self.running[i];
            let seq = run.seq.as_ref().expect("it was just run");
            for (index, answer) in answers {
                let key = Key { index, ..run.key };
                let stage = Stage::Answer(Box::new(answer));
                new_runs.push(Run {
                    seq: Some(self.runner.fork(seq)),
                    done: run.done,
                    cached: run.cached,
                    last_token: run.last_token,
                    ..Run::new(key, run.prompt.clone(), stage)
                });
            }
            run.key.index = index;
            run.prompt_logprobs = None;
            run.stage = Stage::Answer(Box::new(first));
        }
        ended.sort_unstable();
        for i in ended.into_iter().rev() {
            if let Some(seq) = self.running.remove(i).seq {
                self.runner.remove(seq);
            }
        }
        self.running.extend(new_runs);
        self.running.sort_by_key(|run| run.key);
        for (id, error) in failed {
            self.fail(id, error);
        }
        let done: Vec<u64> =
            self.jobs.iter().filter(|(_, job)| job.is_done()).map(|(id, _)| *id).collect();
        done.iter().for_each(|id| drop(self.jobs.remove(id)));
    }

    /// Tells how things stand.
    fn publish(&mut self) {
        if let Some(CacheSink(tell)) = &self.settings.cache_sink {
            let events = self.runner.take_cache_events();
            if !events.is_empty() {
                tell(events);
            }
        }
        let pools = self.runner.pool_stats();
        let fullest = pools.iter().max_by(|a, b| {
            let share = |p: &realizar_kvcache::PoolStats| (p.used - p.idle) as f64 / p.total as f64;
            share(a).total_cmp(&share(b))
        });
        let prefix = self.runner.prefix_stats();
        let mut stats = self.shared.stats();
        stats.running = self.n_running();
        stats.waiting_tokens = self.waiting.values().map(Run::n_known).sum();
        if let Some(pool) = fullest {
            stats.kv_used_pages = pool.used - pool.idle;
            stats.kv_idle_pages = pool.idle;
            stats.kv_total_pages = pool.total;
        }
        stats.prefix_queries = prefix.queried_tokens;
        stats.prefix_hits = prefix.found_tokens;
        stats.prefix_evictions = prefix.evicted;
    }
}
