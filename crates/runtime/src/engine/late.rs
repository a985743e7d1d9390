//! Results of a step that have not been emitted yet. Where the model runs asynchronously to the host, the next step is
//! launched before: texts are decoded, searched for stop strings and sent out while it runs.

use super::job::{Job, Key, Run, Stage};
use super::outcome::hand_out;
use super::stats::Counters;
use crate::Error;
use crate::generate::answer::{Answer, Choice};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Instant;

/// A choice whose text is not known yet.
#[derive(Debug)]
struct Late {
    key: Key,
    choice: Choice,
    /// The answer and its last token's time, where its run is over.
    ended: Option<(Box<Answer>, Option<Instant>)>,
}

/// The sampled tokens of a step, in the order in which they are emitted, and the results of emitting them.
#[derive(Debug, Default)]
pub(super) struct Lates {
    choices: Vec<Late>,
    /// When the step was done.
    at: Option<Instant>,
    /// Runs whose text has ended their answers. They may be in the step that was launched.
    over: Vec<Key>,
    /// Jobs that an error ends.
    failed: Vec<(u64, Error)>,
}

impl Lates {
    /// Adds a choice of the step that was done at `at`.
    pub(super) fn push(&mut self, key: Key, choice: Choice, at: Instant) {
        self.choices.push(Late { key, choice, ended: None });
        self.at = Some(at);
    }

    /// Keeps an answer whose run is over until its tokens are emitted.
    pub(super) fn keep(&mut self, key: Key, answer: Box<Answer>, last_token: Option<Instant>) {
        if let Some(late) = self.choices.iter_mut().rev().find(|late| late.key == key) {
            late.ended = Some((answer, last_token));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.choices.is_empty()
    }

    /// The jobs whose choices these are; some come several times.
    pub(super) fn jobs(&self) -> impl Iterator<Item = u64> {
        self.choices.iter().map(|late| late.key.job)
    }

    /// Forgets a job.
    pub(super) fn forget(&mut self, job: u64) {
        self.choices.retain(|late| late.key.job != job);
    }

    /// Whether the text of a run has ended its answer.
    pub(super) fn is_over(&self, key: Key) -> bool {
        self.over.contains(&key)
    }

    /// Tells all choices. No run is removed: those that are over are noted.
    pub(super) fn tell(
        &mut self,
        jobs: &mut HashMap<u64, Job>,
        (running, waiting): (&mut [Run], &mut BTreeMap<Key, Run>),
        (stats, path): (&Counters, &Path),
    ) {
        let Self { choices, at, over, failed } = self;
        let Some(now) = at.take() else { return };
        // An answer that is kept comes with the last of its choices, and is needed for all.
        let mut i = 0;
        while i < choices.len() {
            let key = choices[i].key;
            let n = choices[i..].iter().take_while(|late| late.key == key).count();
            let mut ended = choices[i + n - 1].ended.take();
            let has_ended = ended.is_some();
            let (answer, last) = match &mut ended {
                Some((answer, last)) => (&mut **answer, last),
                None => match find(running, waiting, key) {
                    Some(found) => found,
                    None => {
                        i += n;
                        continue;
                    }
                },
            };
            let mut is_over = false;
            for late in &mut choices[i..i + n] {
                let Some(job) = jobs.get_mut(&key.job).filter(|_| !is_over) else { break };
                let choice = std::mem::take(&mut late.choice);
                match answer.tell(choice) {
                    Ok(next) => {
                        is_over = hand_out((key.index, answer, next), last, job, (now, stats));
                    }
                    Err(error) => {
                        failed.push((key.job, error.of_model(path)));
                        is_over = true;
                    }
                }
            }
            if is_over && !has_ended {
                over.push(key);
            }
            i += n;
        }
        choices.clear();
    }

    /// Removes the runs that are over, and gives the jobs that failed to `fail`.
    pub(super) fn finish(
        &mut self,
        running: &mut Vec<Run>,
        waiting: &mut BTreeMap<Key, Run>,
    ) -> Vec<(u64, Error)> {
        if !self.over.is_empty() {
            running.retain(|run| !self.over.contains(&run.key));
            waiting.retain(|key, _| !self.over.contains(key));
            self.over.clear();
        }
        std::mem::take(&mut self.failed)
    }
}

/// The answer of a run, and the time of its last token.
fn find<'a>(
    running: &'a mut [Run],
    waiting: &'a mut BTreeMap<Key, Run>,
    key: Key,
) -> Option<(&'a mut Answer, &'a mut Option<Instant>)> {
    let run = match running.binary_search_by_key(&key, |run| run.key) {
        Ok(at) => &mut running[at],
        Err(_) => waiting.get_mut(&key)?,
    };
    match &mut run.stage {
        Stage::Answer(answer) => Some((answer, &mut run.last_token)),
        Stage::Prompt { .. } | Stage::Embedding(_) => None,
    }
}
