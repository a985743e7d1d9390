//! The pages and recurrent states of one sequence.

use crate::prefix::Place;
use crate::{BlockTable, PAGE_LEN, PageId, SeqStates, StateId, Symbol};

/// The pages and recurrent states of one sequence. [`KvCache::clear`](crate::KvCache::clear) releases them.
#[derive(Debug)]
pub struct SeqPages {
    pub(crate) tables: Vec<BlockTable>, // [n_groups]
    pub(crate) len: usize,
    /// Symbols of the prompt rows written so far; empty if there is no prefix cache.
    pub(crate) prompt: Vec<Symbol>,
    /// Position in the prefix tree of the sequence's next prompt page.
    pub(crate) place: Place,
    /// Number of prompt pages in the prefix tree; the last of them is `place.parent`.
    pub(crate) n_nodes: usize,
    pub(crate) states: SeqStates,
    /// Length of the whole prompt, see [`KvCache::expect_prompt`](crate::KvCache::expect_prompt).
    pub(crate) prompt_len: usize,
    /// Prompt positions at page ends whose states the prefix cache shall keep; ascending.
    pub(crate) requested_states: Vec<usize>,
}

impl SeqPages {
    /// The block table of each layer group.
    pub fn tables(&self) -> &[BlockTable] {
        &self.tables
    }

    /// The recurrent states; empty if the model has no recurrent layers.
    pub fn states(&self) -> &SeqStates {
        &self.states
    }

    /// Number of positions that are written.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position is written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Requests the state at the last page end up to `len`, where another prompt diverges.
    pub(crate) fn request_junction(&mut self, len: usize) {
        self.request_state(len / PAGE_LEN * PAGE_LEN);
    }

    /// Requests that the prefix cache keep the state after `pos` positions. Positions that are already
    /// written, or after the prompt, are ignored.
    pub(crate) fn request_state(&mut self, pos: usize) {
        let at = self.requested_states.partition_point(|&p| p < pos);
        if pos > self.len && pos <= self.prompt_len && self.requested_states.get(at) != Some(&pos) {
            self.requested_states.insert(at, pos);
        }
    }

    /// The state after `pos` positions, if it was requested and the last step wrote it.
    pub(crate) fn requested_state(&self, pos: usize) -> Option<StateId> {
        self.requested_states.binary_search(&pos).ok()?;
        let last = || self.states.current().filter(|_| pos == self.len);
        self.states.written_at(pos).or_else(last)
    }

    /// Page `idx` in each layer group; `None` in groups whose window has released it.
    pub(crate) fn pages(&self, idx: usize) -> impl Iterator<Item = Option<PageId>> {
        self.tables.iter().map(move |table| table.page(idx))
    }
}
