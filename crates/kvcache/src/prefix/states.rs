//! The recurrent states in the prefix tree.

use super::{HeldState, NodeId, Place, PrefixTree};
use crate::pool::Pools;
use crate::{PAGE_LEN, StateId, Symbol, Variant};

impl PrefixTree {
    /// Shortens `path`, which matches the first `len` of `symbols`, so that it ends with the last node
    /// that holds a state and matches whole. Returns the number of symbols that it then matches.
    pub(super) fn end_at_state(
        &self,
        path: &mut Vec<NodeId>,
        variant: Variant,
        symbols: &[Symbol],
        mut len: usize,
    ) -> usize {
        let is_usable = |path: &[NodeId], id: NodeId, len: usize| {
            self.node(id).state.is_some() && self.is_usable(path, len)
        };
        while len > 0 {
            let start = (len - 1) / PAGE_LEN * PAGE_LEN;
            path.truncate(start / PAGE_LEN);
            let place = Place { variant, parent: path.last().copied() };
            // The nodes that end within this page, the longest first.
            for end in (start + 1..=len).rev() {
                let wanted = &symbols[start..end];
                if let Some(id) = self.child(place, self.child_idx(place, wanted), wanted) {
                    path.push(id);
                    if is_usable(path, id, end) {
                        return end;
                    }
                    path.pop();
                }
            }
            len = start;
        }
        path.clear();
        0
    }

    /// The recurrent state that a node holds.
    pub(crate) fn state(&self, id: NodeId) -> Option<StateId> {
        self.node(id).state.map(|held| held.state)
    }

    /// Gives a node a recurrent state, and takes a reference to it, unless the node has one already.
    pub(crate) fn hold_state(&mut self, id: NodeId, state: StateId, pools: &mut Pools) {
        let now = self.clock;
        let node = self.node_mut(id);
        if node.state.is_none() {
            node.state = Some(HeldState { state, last_used: now });
            pools.states.retain_cached(state);
            self.states_by_use.insert((now, id));
            self.stats.states += 1;
            self.stats.states_stored += 1;
        }
    }

    /// Releases a node's state.
    pub(super) fn drop_state(&mut self, id: NodeId, pools: &mut Pools) {
        if let Some(held) = self.node_mut(id).state.take() {
            self.states_by_use.remove(&(held.last_used, id));
            pools.states.release_cached(held.state);
            self.stats.states -= 1;
        }
    }

    /// Evicts up to `n` recurrent states that only the prefix cache holds, in LRU order.
    pub(crate) fn evict_states(&mut self, n: usize, pools: &mut Pools) {
        let idle = |&&(_, id): &&(u64, NodeId)| {
            self.state(id).is_some_and(|state| pools.states.is_idle(state))
        };
        let chosen: Vec<_> = self.states_by_use.iter().filter(idle).take(n).copied().collect();
        for (_, id) in chosen {
            self.drop_state(id, pools);
            self.stats.states_evicted += 1;
        }
    }
}
