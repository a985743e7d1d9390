//! The recurrent states of one sequence: which it continues from, and which it may go back to.
//!
//! A state stands for all positions up to one and cannot be cut as pages can. So it is never written
//! twice: a step reads the state before its rows and writes the states after some of them, each to
//! a place of its own. Forks share them, a step that fails gives its own back, and draft tokens that
//! are rejected end at the state after the last one that was accepted.

use crate::StateId;
use crate::pool::StatePool;

/// Positions between the states that the prefix cache keeps of a long prompt.
pub(crate) const STATE_STRIDE: usize = 1024;

/// The recurrent states that a sequence holds.
#[derive(Debug, Default)]
pub struct SeqStates {
    /// After all positions; none before the first.
    current: Option<StateId>,
    /// After earlier positions that it may go back to, ascending.
    marks: Vec<(usize, StateId)>,
    /// What the step that is being run writes, ascending; the last is after all its positions.
    pending: Vec<(usize, StateId)>,
    /// After its prompt, for the prefix cache.
    prompt_end: Option<(usize, StateId)>,
}

impl SeqStates {
    /// The state that the next step continues from; none for an empty sequence.
    pub fn current(&self) -> Option<StateId> {
        self.current
    }

    /// What the step that is being run has to write: the number of positions that a state stands
    /// for, and its place. Ascending; the last stands for all.
    pub fn pending(&self) -> &[(usize, StateId)] {
        &self.pending
    }

    /// The same current state for another sequence.
    pub(crate) fn fork(&self, pool: &mut StatePool) -> Self {
        Self { current: self.current.map(|state| pool.retain(state)), ..Self::default() }
    }

    /// Begins with a state, the reference to which passes to it.
    pub(crate) fn begin(&mut self, state: StateId) {
        debug_assert!(self.current.is_none(), "a sequence begins once");
        self.current = Some(state);
    }

    /// Plans to write a state, the reference to which passes to it.
    pub(crate) fn plan(&mut self, pos: usize, state: StateId) {
        let at = self.pending.partition_point(|&(p, _)| p < pos);
        self.pending.insert(at, (pos, state));
    }

    /// The pending states are written: those from before are released, and the last of the new ones is
    /// the current one.
    pub(crate) fn commit(&mut self, pool: &mut StatePool) {
        self.marks.drain(..).for_each(|(_, state)| pool.release(state));
        if let Some((_, last)) = self.pending.pop() {
            self.current.replace(last).into_iter().for_each(|state| pool.release(state));
        }
        std::mem::swap(&mut self.marks, &mut self.pending);
    }

    /// The pending states are not written.
    pub(crate) fn give_up(&mut self, pool: &mut StatePool) {
        self.pending.drain(..).for_each(|(_, state)| pool.release(state));
    }

    /// Keeps the current state, after `pos` positions, as that of the prompt's end.
    pub(crate) fn keep_prompt_end(&mut self, pos: usize, pool: &mut StatePool) {
        if let Some(state) = self.current {
            let before = self.prompt_end.replace((pos, pool.retain(state)));
            before.into_iter().for_each(|(_, state)| pool.release(state));
        }
    }

    /// The state after the prompt, if that has `len` tokens.
    pub(crate) fn prompt_end(&self, len: usize) -> Option<StateId> {
        self.prompt_end.filter(|&(pos, _)| pos == len).map(|(_, state)| state)
    }

    /// A state that was just written, if `pos` is where it is.
    pub(crate) fn written_at(&self, pos: usize) -> Option<StateId> {
        self.marks.iter().find(|&&(p, _)| p == pos).map(|&(_, state)| state)
    }

    /// The last of its own states after no more than `len` positions, of fewer than all.
    pub(crate) fn last_before(&self, len: usize) -> Option<(usize, StateId)> {
        let known = self.marks.iter().copied().chain(self.prompt_end);
        known.filter(|&(pos, _)| pos <= len).max_by_key(|&(pos, _)| pos)
    }

    /// Goes back to a state after `pos` positions, to which the sequence gets its own reference.
    pub(crate) fn go_back(&mut self, pos: usize, state: StateId, pool: &mut StatePool) {
        let state = pool.retain(state);
        self.current.replace(state).into_iter().for_each(|state| pool.release(state));
        self.marks.drain(..).for_each(|(_, state)| pool.release(state));
        if let Some((_, state)) = self.prompt_end.take_if(|(end, _)| *end > pos) {
            pool.release(state);
        }
    }

    /// Releases all states.
    pub(crate) fn clear(&mut self, pool: &mut StatePool) {
        self.give_up(pool);
        self.marks.drain(..).for_each(|(_, state)| pool.release(state));
        self.current.take().into_iter().for_each(|state| pool.release(state));
        self.prompt_end.take().into_iter().for_each(|(_, state)| pool.release(state));
    }
}
