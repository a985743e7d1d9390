//! The slots of a model, as llama-server calls the places of sequences that generate, and what is known
//! of each.
//!
//! A sequence takes the lowest free place when its prompt was run and leaves it when its answer is
//! complete or its request is gone. Places say nothing of memory: pages are shared by all sequences.

use realizar_runtime::GenerateParams;
use realizar_runtime::engine::EngineEvent;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The places of a model.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    n_tasks: AtomicU64,
    places: Mutex<Vec<Option<Sequence>>>,
}

/// What sequences of one prompt have in common.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) id: u64,
    pub(crate) n_prompt: usize,
    /// Without the constraint.
    pub(crate) params: Arc<GenerateParams>,
}

/// A sequence that generates.
#[derive(Debug, Clone)]
pub(crate) struct Sequence {
    pub(crate) task: Arc<Task>,
    /// Tokens of its prompt that were prefix-cache hits.
    pub(crate) n_cached: usize,
    pub(crate) n_decoded: usize,
    pub(crate) has_new_line: bool,
}

impl Slots {
    /// What is in each place.
    pub(crate) fn list(&self) -> Vec<Option<Sequence>> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<Sequence>>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, sequence: Sequence) -> usize {
        let mut places = self.lock();
        let free = places.iter().position(Option::is_none).unwrap_or(places.len());
        if free == places.len() {
            places.push(None);
        }
        places[free] = Some(sequence);
        free
    }

    fn leave(&self, place: usize) {
        self.lock()[place] = None;
    }
}

/// The places of one prompt's answers.
#[derive(Debug)]
pub(crate) struct Seats {
    slots: Arc<Slots>,
    task: Arc<Task>,
    seats: Mutex<Vec<Seat>>,
}

#[derive(Debug, Clone, Copy)]
enum Seat {
    None,
    Taken(usize),
    Left(usize),
}

impl Seats {
    /// Of `n` answers to a prompt, which have no places yet.
    pub(crate) fn new(
        slots: &Arc<Slots>,
        n_prompt: usize,
        params: &Arc<GenerateParams>,
        n: usize,
    ) -> Self {
        let id = slots.n_tasks.fetch_add(1, Ordering::Relaxed);
        let task = Arc::new(Task { id, n_prompt, params: params.clone() });
        Self { slots: slots.clone(), task, seats: Mutex::new(vec![Seat::None; n]) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Seat>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the engine's events of the answers.
    pub(crate) fn follow(&self, event: &EngineEvent) {
        let mut seats = self.lock();
        match event {
            EngineEvent::Prompt { cached_tokens, .. } => {
                for seat in &mut *seats {
                    *seat = Seat::Taken(self.slots.take(Sequence {
                        task: self.task.clone(),
                        n_cached: *cached_tokens,
                        n_decoded: 0,
                        has_new_line: false,
                    }));
                }
            }
            EngineEvent::Token(token) => {
                if let Some(Seat::Taken(place)) = seats.get(token.index)
                    && let Some(sequence) = &mut self.slots.lock()[*place]
                {
                    sequence.n_decoded += 1;
                    sequence.has_new_line |= token.text.contains('\n');
                }
            }
            EngineEvent::Finished { index, .. } => {
                seats.get_mut(*index).into_iter().for_each(|seat| self.leave(seat));
            }
            EngineEvent::Failed(_) => seats.iter_mut().for_each(|seat| self.leave(seat)),
            _ => {}
        }
    }

    fn leave(&self, seat: &mut Seat) {
        if let Seat::Taken(place) = *seat {
            self.slots.leave(place);
            *seat = Seat::Left(place);
        }
    }

    /// The places that the answers have or had.
    pub(crate) fn places(&self) -> Vec<usize> {
        let place = |seat: &Seat| match *seat {
            Seat::None => None,
            Seat::Taken(place) | Seat::Left(place) => Some(place),
        };
        self.lock().iter().filter_map(place).collect()
    }

    /// Leaves all places: the request is gone.
    pub(crate) fn leave_all(&self) {
        self.lock().iter_mut().for_each(|seat| self.leave(seat));
    }
}

impl Drop for Seats {
    fn drop(&mut self) {
        self.leave_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use realizar_runtime::FinishReason;
    use realizar_runtime::engine::AnswerToken;
    use std::time::Duration;

    fn prompt() -> EngineEvent {
        EngineEvent::Prompt { cached_tokens: 2, prefill: Duration::ZERO, logprobs: Vec::new() }
    }

    fn token(index: usize, text: &str) -> EngineEvent {
        let (id, text) = (0, text.to_owned());
        EngineEvent::Token(AnswerToken { index, id, text, logprob: None, top_logprobs: Vec::new() })
    }

    fn finished(index: usize) -> EngineEvent {
        let (reason, tail) = (FinishReason::Stop, String::new());
        EngineEvent::Finished { index, reason, tail, stop: None }
    }

    /// Of each place, whose it is and how many tokens it has.
    fn shown(slots: &Slots) -> Vec<Option<(u64, usize, bool)>> {
        let one =
            |sequence: Sequence| (sequence.task.id, sequence.n_decoded, sequence.has_new_line);
        slots.list().into_iter().map(|sequence| sequence.map(one)).collect()
    }

    #[test]
    fn places_are_taken_from_the_lowest_on_and_left() {
        let slots = Arc::new(Slots::default());
        let params = Arc::new(GenerateParams::default());
        let [a, b] = [2, 1].map(|n| Seats::new(&slots, 5, &params, n));
        assert_eq!((shown(&slots), a.places()), (vec![], vec![]));
        a.follow(&prompt());
        b.follow(&prompt());
        assert_eq!((a.places(), b.places()), (vec![0, 1], vec![2]));
        a.follow(&token(1, "x"));
        b.follow(&token(0, "\n"));
        b.follow(&token(0, "y"));
        let want = [Some((0, 0, false)), Some((0, 1, false)), Some((1, 2, true))];
        assert_eq!(shown(&slots), want);
        a.follow(&finished(0));
        assert_eq!((shown(&slots)[0], a.places()), (None, vec![0, 1]));
        let c = Seats::new(&slots, 1, &params, 1);
        c.follow(&prompt());
        assert_eq!(c.places(), [0]);
        drop(a);
        b.leave_all();
        b.leave_all();
        assert_eq!(shown(&slots), [Some((2, 0, false)), None, None]);
        assert_eq!(slots.list()[0].as_ref().map(|s| (s.n_cached, s.task.n_prompt)), Some((2, 1)));
        c.follow(&EngineEvent::Failed(realizar_runtime::Error::Ended));
        assert_eq!(shown(&slots), [None, None, None]);
    }
}
