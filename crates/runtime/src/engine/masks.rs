//! What grammars allow next, computed while the model runs.
//!
//! A mask depends on the tokens that were chosen so far and not on the logits, so it is ready when
//! they are. Constraints leave their answers for the time of a step, for a thread of their own, and
//! come back with the mask. The list that they travel in is always the same.

use super::job::{Run, Stage};
use super::schedule::{Planned, Wanted};
use crate::Error;
use crate::base::panics;
use crate::text::constrain::{Constraint, TokenMask};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// A constraint that is worked on.
struct Task {
    run: usize,
    answer: usize,
    constraint: Constraint,
    mask: Option<TokenMask>,
    took: Duration,
}

/// The constraints of a step, and the thread that computes their masks. The thread ends when this
/// is dropped.
pub(super) struct Masks {
    tasks: Vec<Task>,
    /// Whether the thread has the tasks.
    is_away: bool,
    to_thread: SyncSender<Vec<Task>>,
    from_thread: Receiver<Vec<Task>>,
}

impl Masks {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub(super) fn start() -> Result<Self, Error> {
        // Channels with a bound allocate once, when they are made.
        let (to_thread, tasks) = sync_channel::<Vec<Task>>(1);
        let (results, from_thread) = sync_channel(1);
        let work = move || {
            for mut tasks in tasks {
                compute(&mut tasks);
                if results.send(tasks).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("masks".to_owned()).spawn(work);
        thread.map_err(|source| Error::Thread { name: "masks", source })?;
        Ok(Self { tasks: Vec::new(), is_away: false, to_thread, from_thread })
    }

    /// Takes the constraints of the answers that get logits in this step, and begins to compute
    /// their masks.
    pub(super) fn begin(&mut self, running: &mut [Run], planned: &[Planned]) {
        assert!(!self.is_away, "masks are computed for one step at a time");
        let tasks = &mut self.tasks;
        for planned in planned.iter().filter(|planned| planned.wanted != Wanted::None) {
            let run = planned.run;
            let mut take = |(answer, state): (usize, &mut crate::generate::answer::Answer)| {
                let constraint = state.take_constraint();
                tasks.extend(constraint.map(|constraint| Task {
                    run,
                    answer,
                    constraint,
                    mask: None,
                    took: Duration::ZERO,
                }));
            };
            match &mut running[run].stage {
                Stage::Prompt { answers, .. } => answers.iter_mut().enumerate().for_each(take),
                Stage::Answer(answer) => take((0, &mut **answer)),
                Stage::Embedding(_) => {}
            }
        }
        if !tasks.is_empty() {
            self.to_thread.send(std::mem::take(tasks)).expect(LIVES);
            self.is_away = true;
        }
    }

    /// Waits for the masks, and gives the constraints back to their answers.
    pub(super) fn finish(&mut self, running: &mut [Run]) {
        self.wait();
        for Task { run, answer, constraint, mask, took } in self.tasks.drain(..) {
            let run = &mut running[run];
            match &mut run.stage {
                Stage::Prompt { answers, .. } => answers[answer].put_constraint(constraint, mask),
                Stage::Answer(state) => {
                    state.put_constraint(constraint, mask);
                    run.mask_time = took;
                }
                Stage::Embedding(_) => unreachable!("a text that is embedded has no grammar"),
            }
        }
    }

    /// Drops the constraints of an abandoned step.
    pub(super) fn discard(&mut self) {
        self.wait();
        self.tasks.clear();
    }

    fn wait(&mut self) {
        if std::mem::take(&mut self.is_away) {
            self.tasks = self.from_thread.recv().expect(LIVES);
        }
    }
}

/// Whatever a grammar does, it is caught.
const LIVES: &str = "the thread of masks lives as long as the engine's";

/// Computes the masks. One that fails is left out: it fails again, with its error, when its
/// answer asks for it.
fn compute(tasks: &mut [Task]) {
    for Task { constraint, mask, took, .. } in tasks {
        let start = Instant::now();
        *mask = panics::caught(|| constraint.compute_mask().ok()).unwrap_or_else(|panic| {
            tracing::error!("a grammar's mask panicked: {panic}");
            None
        });
        *took = start.elapsed();
    }
}
