//! Grammar masks, computed while the model runs.
//!
//! A mask depends on the tokens that were sampled so far and not on the logits, so it is ready when
//! these are. For the time of a step the constraints move to a thread of their own, and return with
//! their masks. The list that they travel in is reused.

use super::sequence::{Sequence, Stage};
use super::step::StepPlan;
use crate::Error;
use crate::run::Outputs;
use realizar_base::panics;
use realizar_text::constrain::{Constraint, TokenMask};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// A constraint whose mask is computed.
struct Task {
    seq_idx: usize,
    /// The index of its answer in the sequence.
    answer_idx: usize,
    constraint: Constraint,
    mask: Option<TokenMask>,
    time: Duration,
}

impl Task {
    fn new(seq_idx: usize, answer_idx: usize, constraint: Constraint) -> Self {
        Self { seq_idx, answer_idx, constraint, mask: None, time: Duration::ZERO }
    }

    /// Computes the mask. If that fails, there is none, and the sampler fails with the error.
    fn compute(&mut self) {
        let start = Instant::now();
        let mask = panics::caught(|| self.constraint.compute_mask().ok());
        self.mask = mask.unwrap_or_else(|panic| {
            tracing::error!("a grammar's mask panicked: {panic}");
            None
        });
        self.time = start.elapsed();
    }
}

/// The constraints of a step, and the thread that computes their masks. Dropping it ends the thread.
pub(super) struct Masks {
    tasks: Vec<Task>,
    /// Whether the thread has the tasks.
    is_away: bool,
    to_thread: SyncSender<Vec<Task>>,
    from_thread: Receiver<Vec<Task>>,
}

/// The thread catches every panic of a grammar.
const LIVES: &str = "the thread of masks lives as long as the engine's";

impl Masks {
    /// Starts the thread.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(super) fn start() -> Result<Self, Error> {
        // Bounded channels allocate once, when they are created.
        let (to_thread, tasks) = sync_channel::<Vec<Task>>(1);
        let (results, from_thread) = sync_channel(1);
        let work = move || {
            for mut tasks in tasks {
                tasks.iter_mut().for_each(Task::compute);
                if results.send(tasks).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("masks".to_owned()).spawn(work);
        thread.map_err(|source| Error::Thread { name: "masks", source })?;
        Ok(Self { tasks: Vec::new(), is_away: false, to_thread, from_thread })
    }

    /// Takes the constraints of the answers that are sampled in this step, and begins to compute
    /// their masks.
    pub(super) fn begin(&mut self, seqs: &mut [Sequence], plan: &StepPlan) {
        assert!(!self.is_away, "masks are computed for one step at a time");
        for chunk in plan.chunks.iter().filter(|chunk| chunk.outputs != Outputs::None) {
            let seq_idx = chunk.seq_idx;
            match &mut seqs[seq_idx].stage {
                Stage::Prompt { answers, .. } => {
                    for (i, answer) in answers.iter_mut().enumerate() {
                        let constraint = answer.take_constraint();
                        self.tasks.extend(constraint.map(|own| Task::new(seq_idx, i, own)));
                    }
                }
                Stage::Answer(answer) => {
                    let constraint = answer.take_constraint();
                    self.tasks.extend(constraint.map(|own| Task::new(seq_idx, 0, own)));
                }
                Stage::Embedding(_) => {}
            }
        }
        if !self.tasks.is_empty() {
            self.to_thread.send(std::mem::take(&mut self.tasks)).expect(LIVES);
            self.is_away = true;
        }
    }

    /// Waits for the masks, and returns the constraints to their answers.
    pub(super) fn finish(&mut self, seqs: &mut [Sequence]) {
        self.wait();
        for Task { seq_idx, answer_idx, constraint, mask, time } in self.tasks.drain(..) {
            let seq = &mut seqs[seq_idx];
            match &mut seq.stage {
                Stage::Prompt { answers, .. } => {
                    answers[answer_idx].put_constraint(constraint, mask);
                }
                Stage::Answer(answer) => {
                    answer.put_constraint(constraint, mask);
                    seq.mask_time = time;
                }
                Stage::Embedding(_) => unreachable!("an embedding has no grammar"),
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
