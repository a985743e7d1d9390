//! The recurrent states of one sequence: the current one, and those it can be truncated to.
//!
//! A recurrent state summarizes all positions before it, so it cannot be cut as pages can. It is
//! therefore never overwritten: a step reads the state before its rows and writes the states after
//! some of them to slots of their own. Forks share states, a failed step releases its slots, and
//! when draft tokens are rejected the sequence continues from the state after the last accepted one.

use crate::StateId;
use crate::pool::StatePool;

/// Distance in positions between the states of a long prompt that the prefix cache keeps.
pub(crate) const STATE_STRIDE: usize = 1024;

/// The recurrent states that a sequence holds.
#[derive(Debug, Default)]
pub struct SeqStates {
    /// The state after all positions; `None` for an empty sequence.
    current: Option<StateId>,
    /// States after fewer positions, for [`Self::rewind`]; ascending by position.
    checkpoints: Vec<(usize, StateId)>,
    /// States that the current step writes, ascending by position; the last one is after its last row.
    pending: Vec<(usize, StateId)>,
    /// The state after the prompt, which the prefix cache takes when the sequence ends.
    prompt_end: Option<(usize, StateId)>,
}

impl SeqStates {
    /// The state that the next step reads; `None` for an empty sequence.
    pub fn current(&self) -> Option<StateId> {
        self.current
    }

    /// The states that the current step must write: the number of positions before each state, and
    /// its slot. Ascending by position; the last one is after all rows of the step.
    pub fn pending(&self) -> &[(usize, StateId)] {
        &self.pending
    }

    /// States of a fork: it shares the current state and has no others.
    pub(crate) fn fork(&self, pool: &mut StatePool) -> Self {
        Self { current: self.current.map(|state| pool.retain(state)), ..Self::default() }
    }

    /// Sets the first current state, and takes over the caller's reference to it.
    pub(crate) fn set_initial(&mut self, state: StateId) {
        debug_assert!(self.current.is_none(), "a sequence begins once");
        self.current = Some(state);
    }

    /// Adds a state to those that the step writes, and takes over the caller's reference to it.
    pub(crate) fn add_pending(&mut self, pos: usize, state: StateId) {
        let at = self.pending.partition_point(|&(p, _)| p < pos);
        self.pending.insert(at, (pos, state));
    }

    /// Ends a step that wrote the pending states: the last one becomes the current state, the others
    /// become the checkpoints, and the old ones are released.
    pub(crate) fn commit(&mut self, pool: &mut StatePool) {
        self.checkpoints.drain(..).for_each(|(_, state)| pool.release(state));
        if let Some((_, last)) = self.pending.pop() {
            self.current.replace(last).into_iter().for_each(|state| pool.release(state));
        }
        std::mem::swap(&mut self.checkpoints, &mut self.pending);
    }

    /// Releases the pending states of a step that failed.
    pub(crate) fn discard_pending(&mut self, pool: &mut StatePool) {
        self.pending.drain(..).for_each(|(_, state)| pool.release(state));
    }

    /// Keeps the current state, which is after `pos` positions, as the state after the prompt.
    pub(crate) fn keep_prompt_end(&mut self, pos: usize, pool: &mut StatePool) {
        if let Some(state) = self.current {
            let before = self.prompt_end.replace((pos, pool.retain(state)));
            before.into_iter().for_each(|(_, state)| pool.release(state));
        }
    }

    /// The state after the prompt, if it is after `len` positions.
    pub(crate) fn prompt_end(&self, len: usize) -> Option<StateId> {
        self.prompt_end.filter(|&(pos, _)| pos == len).map(|(_, state)| state)
    }

    /// The checkpoint after exactly `pos` positions.
    pub(crate) fn written_at(&self, pos: usize) -> Option<StateId> {
        self.checkpoints.iter().find(|&&(p, _)| p == pos).map(|&(_, state)| state)
    }

    /// The latest state after at most `len` positions, among the checkpoints and the prompt's end.
    pub(crate) fn last_before(&self, len: usize) -> Option<(usize, StateId)> {
        let known = self.checkpoints.iter().copied().chain(self.prompt_end);
        known.filter(|&(pos, _)| pos <= len).max_by_key(|&(pos, _)| pos)
    }

    /// Makes `state`, which is after `pos` positions, the current one and adds a reference to it. Later
    /// states are released.
    pub(crate) fn rewind(&mut self, pos: usize, state: StateId, pool: &mut StatePool) {
        let state = pool.retain(state);
        self.current.replace(state).into_iter().for_each(|state| pool.release(state));
        self.checkpoints.drain(..).for_each(|(_, state)| pool.release(state));
        if let Some((_, state)) = self.prompt_end.take_if(|(end, _)| *end > pos) {
            pool.release(state);
        }
    }

    /// Releases all states.
    pub(crate) fn clear(&mut self, pool: &mut StatePool) {
        self.discard_pending(pool);
        self.checkpoints.drain(..).for_each(|(_, state)| pool.release(state));
        self.current.take().into_iter().for_each(|state| pool.release(state));
        self.prompt_end.take().into_iter().for_each(|(_, state)| pool.release(state));
    }
}
