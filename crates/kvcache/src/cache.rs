//! The cache as an engine uses it: sequences with their pages, and the prefixes that they share.
//!
//! A [`KvCache`] owns the pools of all layer groups and the prefix cache over them. A sequence
//! begins with what the prefix cache has of its prompt, grows, and stores the pages of its prompt
//! for others: full ones at once, and the last one, which it may still write to, when it ends. Pages
//! are shared copy-on-write: growing into a page that others hold takes a new page
//! and asks for a copy.
//!
//! Layers that keep no keys and values have a recurrent state instead ([`SeqStates`]). A model has
//! one pool of these, each of which holds the states of all such layers.

use crate::pool::{Pools, StatePool};
use crate::prefix::{Place, PrefixTree};
use crate::state::STATE_STRIDE;
use crate::{
    BlockTable, CacheEvent, Error, PAGE_LEN, PageId, PagePool, PoolStats, PrefixStats, SeqStates,
    StateId, Symbol, Variant,
};
use std::ops::Range;

/// The contents of a page that must be copied before the next step writes to it. The page that is
/// read stays held until [`KvCache::copied`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageCopy {
    /// The layer group.
    pub group: usize,
    /// The page that is read.
    pub from: PageId,
    /// The page that is written.
    pub to: PageId,
}

/// The pages of one sequence, in all layer groups. They go back by [`KvCache::clear`].
#[derive(Debug)]
pub struct SeqPages {
    tables: Vec<BlockTable>, // [n_groups]
    len: usize,
    /// Rows at the front that were run as a prompt, as far as the prefix cache is to know them.
    prompt: Vec<Symbol>,
    /// Where the sequence's next page will be in the prefix cache.
    place: Place,
    /// Pages from the front up to that one.
    n_nodes: usize,
    states: SeqStates,
    /// Rows of its prompt, as far as they are known.
    prompt_len: usize,
    /// Positions at ends of pages after which the prefix cache is to have the state; ascending.
    wanted_states: Vec<usize>,
}

impl SeqPages {
    /// The block table of each layer group.
    pub fn tables(&self) -> &[BlockTable] {
        &self.tables
    }

    /// Its recurrent states; all none where the model has none.
    pub fn states(&self) -> &SeqStates {
        &self.states
    }

    /// Positions that hold keys and values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position does.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Wants the state at the last page before the `len`-th row, after which another prompt differs.
    fn want_junction(&mut self, len: usize) {
        self.want_state(len / PAGE_LEN * PAGE_LEN);
    }

    /// Wants the state after `pos` positions in the prefix cache, if the sequence has yet to reach
    /// it within its prompt.
    fn want_state(&mut self, pos: usize) {
        let at = self.wanted_states.partition_point(|&p| p < pos);
        if pos > self.len && pos <= self.prompt_len && self.wanted_states.get(at) != Some(&pos) {
            self.wanted_states.insert(at, pos);
        }
    }

    /// The state after `pos` positions, if it is wanted and was just written.
    fn wanted_state(&self, pos: usize) -> Option<StateId> {
        self.wanted_states.binary_search(&pos).ok()?;
        let last = || self.states.current().filter(|_| pos == self.len);
        self.states.written_at(pos).or_else(last)
    }

    /// Of each layer group page `idx`, unless a window has released it.
    fn pages(&self, idx: usize) -> impl Iterator<Item = Option<PageId>> {
        self.tables.iter().map(move |table| table.page(idx))
    }
}

/// The pools of all layer groups, and the prefix cache over them.
///
/// A sequence begins with what the prefix cache has of its prompt, grows, and stores the pages of its
/// prompt for others. Pages are shared copy-on-write.
#[derive(Debug)]
pub struct KvCache {
    windows: Vec<Option<usize>>, // [n_groups]
    pools: Pools,
    has_states: bool,
    tree: Option<PrefixTree>,
    max_pages: usize,
}

impl KvCache {
    /// A cache over groups of a window and a number of pages each, and `n_states` recurrent states
    /// if the model has them, for sequences of up to `max_seq_len` positions.
    pub fn new(
        groups: &[(Option<usize>, usize)],
        n_states: Option<usize>,
        max_seq_len: usize,
        prefixes: bool,
    ) -> Self {
        let windows: Vec<_> = groups.iter().map(|(window, _)| *window).collect();
        let has_states = n_states.is_some();
        Self {
            tree: prefixes.then(|| PrefixTree::new(windows.clone(), has_states)),
            windows,
            pools: Pools {
                pages: groups.iter().map(|(_, n_pages)| PagePool::new(*n_pages)).collect(),
                states: StatePool::new(n_states.unwrap_or(0)),
            },
            has_states,
            max_pages: max_seq_len.div_ceil(PAGE_LEN),
        }
    }

    /// Of each layer group, what its pool has seen.
    pub fn pool_stats(&self) -> impl Iterator<Item = PoolStats> {
        self.pools.pages.iter().map(PagePool::stats)
    }

    /// Whether sequences have recurrent states.
    pub fn has_states(&self) -> bool {
        self.has_states
    }

    /// What the pool of recurrent states has seen; `None` if the model has none.
    pub fn state_stats(&self) -> Option<PoolStats> {
        self.has_states.then(|| self.pools.states.stats())
    }

    /// Whether the pages of prompts are kept for other requests.
    pub fn keeps_prefixes(&self) -> bool {
        self.tree.is_some()
    }

    /// What the prefix cache did; all zero without one.
    pub fn prefix_stats(&self) -> PrefixStats {
        self.tree.as_ref().map(PrefixTree::stats).unwrap_or_default()
    }

    /// Begins to keep the changes of the prefix cache for [`Self::take_events`].
    pub fn keep_events(&mut self) {
        self.tree.iter_mut().for_each(PrefixTree::keep_events);
    }

    /// The changes of the prefix cache since the last call.
    pub fn take_events(&mut self) -> Vec<CacheEvent> {
        self.tree.as_mut().map(PrefixTree::take_events).unwrap_or_default()
    }

    /// An empty sequence.
    pub fn sequence(&self) -> SeqPages {
        let table = |_: &PagePool| BlockTable::with_capacity(self.max_pages);
        SeqPages {
            tables: self.pools.pages.iter().map(table).collect(),
            len: 0,
            prompt: Vec::new(),
            place: Place::default(),
            n_nodes: 0,
            states: SeqStates::default(),
            prompt_len: 0,
            wanted_states: Vec::new(),
        }
    }

    /// A sequence with the same positions, whose pages are shared until one of both writes.
    pub fn fork(&mut self, seq: &SeqPages) -> SeqPages {
        if let (Some(tree), Some(node)) = (&mut self.tree, seq.place.parent) {
            tree.pin(node);
        }
        let tables = seq.tables.iter().zip(&mut self.pools.pages).map(|(table, pool)| {
            table.pages().iter().for_each(|&page| pool.retain(page));
            let pages = table.pages().iter().copied();
            BlockTable::of(table.first_page(), pages, table.len(), self.max_pages)
        });
        SeqPages {
            tables: tables.collect(),
            len: seq.len,
            prompt: seq.prompt.clone(),
            place: seq.place,
            n_nodes: seq.n_nodes,
            states: seq.states.fork(&mut self.pools.states),
            prompt_len: seq.prompt_len,
            wanted_states: Vec::new(),
        }
    }

    /// Gives an empty sequence, which is of `variant` from now on, the pages that the prefix cache
    /// has for the beginning of `prompt`, up to `max_len` rows; returns how many rows they cover. Of
    /// each range of `whole` they cover all rows or none.
    ///
    /// # Panics
    /// If the sequence is not empty.
    pub fn adopt(
        &mut self,
        seq: &mut SeqPages,
        variant: Variant,
        prompt: &[Symbol],
        max_len: usize,
        whole: &[Range<usize>],
    ) -> usize {
        assert!(
            seq.len == 0 && seq.place.parent.is_none(),
            "a sequence that adopts pages is empty"
        );
        self.expect_prompt(seq, prompt.len());
        let Some(tree) = &mut self.tree else { return 0 };
        let found = tree.lookup(variant, prompt, max_len, whole);
        seq.place.variant = variant;
        seq.want_junction(found.junction);
        if found.len == 0 {
            return 0;
        }
        if let Some(state) = found.state.filter(|_| self.has_states) {
            seq.states.begin(self.pools.states.retain(state));
        }
        for (group, table) in seq.tables.iter_mut().enumerate() {
            let pool = &mut self.pools.pages[group];
            let first = PrefixTree::first_needed(self.windows[group], found.len);
            let pages = found.path[first..].iter().map(|&id| {
                let page = tree.page(id, group).expect("a match has the pages that it needs");
                pool.retain(page);
                page
            });
            *table = BlockTable::of(first, pages, found.len, self.max_pages);
        }
        seq.len = found.len;
        seq.prompt.extend_from_slice(&prompt[..found.len]);
        seq.n_nodes = found.len / PAGE_LEN;
        seq.place.parent = seq.n_nodes.checked_sub(1).map(|last| found.path[last]);
        if let Some(node) = seq.place.parent {
            tree.pin(node);
        }
        found.len
    }

    /// A sequence of `len` positions, with fresh pages from page `first_pages[group]` on; `None`
    /// where a window would miss one of the pages before.
    ///
    /// # Errors
    /// [`Error::OutOfPages`] when other sequences hold too many pages.
    pub fn place(&mut self, len: usize, first_pages: &[usize]) -> Result<Option<SeqPages>, Error> {
        let mut seq = self.sequence();
        let needed = |window: &Option<usize>| PrefixTree::first_needed(*window, len);
        if first_pages.len() != self.pools.pages.len()
            || first_pages.iter().zip(&self.windows).any(|(&first, w)| first > needed(w))
        {
            return Ok(None);
        }
        for (group, &first) in first_pages.iter().enumerate() {
            let n = len.div_ceil(PAGE_LEN) - first;
            self.make_room(group, n);
            let mut pages = Vec::with_capacity(self.max_pages);
            if let Err(error) = self.pools.pages[group].allocate(n, &mut pages) {
                self.release(&mut seq);
                return Err(error);
            }
            seq.tables[group] = BlockTable::of(first, pages, len, self.max_pages);
        }
        if self.has_states && len > 0 {
            let taken = self.take_states(1);
            let begun = taken.map(|states| states.for_each(|state| seq.states.begin(state)));
            if let Err(error) = begun {
                self.release(&mut seq);
                return Err(error);
            }
        }
        seq.len = len;
        Ok(Some(seq))
    }

    /// Evicts prefixes until a group has `n` free pages, or nothing is left to evict.
    fn make_room(&mut self, group: usize, n: usize) {
        let short = n.saturating_sub(self.pools.pages[group].n_free());
        if short > 0
            && let Some(tree) = &mut self.tree
        {
            tree.evict(group, short, &mut self.pools);
        }
    }

    /// Allocates `n` states, and evicts some from the prefix cache if too few are free.
    fn take_states(&mut self, n: usize) -> Result<impl Iterator<Item = StateId>, Error> {
        let short = n.saturating_sub(self.pools.states.n_free());
        if short > 0
            && let Some(tree) = &mut self.tree
        {
            tree.evict_states(short, &mut self.pools);
        }
        self.pools.states.take(n)
    }

    /// Whether there are pages for a sequence of `len` positions, beside `spare` more in each group.
    pub fn has_room(&self, len: usize, spare: usize) -> bool {
        let has_pages = self.pools.pages.iter().zip(&self.windows).all(|(pool, window)| {
            let len = window.map_or(len, |w| len.min(w + PAGE_LEN));
            pool.n_available() >= len.div_ceil(PAGE_LEN) + spare
        });
        // The state that it continues from, and the one that it writes.
        has_pages && (!self.has_states || self.pools.states.n_available() >= 2)
    }

    /// Whether a sequence of `len` positions, run in steps of up to `max_step`, fits at all.
    pub fn could_hold(&self, len: usize, max_step: usize) -> bool {
        let has_pages = self.pools.pages.iter().zip(&self.windows).all(|(pool, window)| {
            let len = window.map_or(len, |w| len.min(w + max_step + PAGE_LEN));
            pool.stats().total >= len.div_ceil(PAGE_LEN)
        });
        has_pages && (!self.has_states || self.pools.states.stats().total >= 2)
    }

    /// Gets the pages for the positions up to `len`, and evicts prefixes for them where it must.
    /// Of a model with recurrent states also the places of those after the last `n_states` of these
    /// positions, and of those that the prefix cache is to have, if there is room; none where
    /// `n_states` is 0, as for positions that are released unwritten.
    /// Pages that a window has passed are released. What must be copied before these positions
    /// are written is added to `copies`, to which the growth of all sequences of a step adds. When
    /// the copies are made, [`Self::copied`] follows; where they are not, or where this fails,
    /// [`Self::shrink`] of each of these sequences takes everything back.
    ///
    /// # Errors
    /// [`Error::OutOfPages`] when other sequences hold too many pages.
    pub fn grow(
        &mut self,
        seq: &mut SeqPages,
        len: usize,
        n_states: usize,
        copies: &mut Vec<PageCopy>,
    ) -> Result<(), Error> {
        if self.has_states && n_states > 0 && len > seq.len {
            self.plan_states(seq, len, n_states.clamp(1, len - seq.len))?;
        }
        for group in 0..self.pools.pages.len() {
            let (table, pool) = (&mut seq.tables[group], &mut self.pools.pages[group]);
            if let Some(window) = self.windows[group] {
                table.release_before((seq.len + 1).saturating_sub(window), pool);
            }
            let written = (!seq.len.is_multiple_of(PAGE_LEN)).then(|| table.locate(seq.len - 1).0);
            let shared = |pool: &PagePool| {
                written.filter(|&page| {
                    // Each planned copy releases one reference.
                    let is_left = |c: &&PageCopy| c.group == group && c.from == page;
                    let n_holds = pool.n_holds(page);
                    n_holds > 1 && n_holds - copies.iter().filter(is_left).count() > 1
                })
            };
            let missing = table.missing(len);
            let needed = missing + usize::from(shared(pool).is_some());
            self.make_room(group, needed);
            let pool = &mut self.pools.pages[group];
            // An eviction may have left the page to this sequence alone.
            let shared = shared(pool);
            let needed = missing + usize::from(shared.is_some());
            if needed > pool.n_free() {
                let (free, total) = (pool.n_free(), pool.stats().total);
                return Err(Error::OutOfPages { needed, free, total });
            }
            if let Some(from) = shared {
                let to = pool.take()?;
                table.replace(seq.len - 1, to);
                copies.push(PageCopy { group, from, to });
            }
            table.grow(len, pool)?;
        }
        Ok(())
    }

    /// Gets the places of the states that a step up to `len` positions writes.
    fn plan_states(&mut self, seq: &mut SeqPages, len: usize, n: usize) -> Result<(), Error> {
        let first = len + 1 - n;
        let SeqPages { states, wanted_states, len: from, .. } = seq;
        self.take_states(n)?.zip(first..).for_each(|(state, pos)| states.plan(pos, state));
        for &pos in wanted_states.iter().filter(|&&pos| pos > *from && pos < first) {
            if let Ok(place) = self.take_states(1) {
                place.for_each(|state| states.plan(pos, state));
            }
        }
        Ok(())
    }

    /// The copies that [`Self::grow`] asked for were made: the pages that they were read from go
    /// back.
    pub fn copied(&mut self, copies: &mut Vec<PageCopy>) {
        copies.drain(..).for_each(|copy| self.pools.pages[copy.group].release(copy.from));
    }

    /// Takes back what [`Self::grow`] did beyond the sequence's positions. Of `copies`, which were
    /// not made, those for this sequence are undone: it has the shared page again.
    pub fn shrink(&mut self, seq: &mut SeqPages, copies: &[PageCopy]) {
        seq.states.give_up(&mut self.pools.states);
        for (group, (table, pool)) in seq.tables.iter_mut().zip(&mut self.pools.pages).enumerate() {
            // What was added holds nothing yet, so no window misses it.
            table.truncate(seq.len, Some(1), pool);
            let last = seq.len.checked_sub(1).and_then(|pos| table.page(pos / PAGE_LEN));
            let own = |copy: &&PageCopy| copy.group == group && Some(copy.to) == last;
            if let Some(copy) = copies.iter().find(own) {
                table.replace(seq.len - 1, copy.from);
                pool.release(copy.to);
            }
        }
    }

    /// Reclaims all pages, even held ones, and clears the prefix cache. Sequences from before
    /// must no longer be used.
    pub fn reset(&mut self) {
        self.pools.pages.iter_mut().for_each(PagePool::reset);
        self.pools.states.reset();
        self.tree.iter_mut().for_each(PrefixTree::reset);
    }

    /// Notes that keys and values were written for `rows` after the sequence's positions, as
    /// part of its prompt or not. Full pages of the prompt are stored for other sequences.
    pub fn written(
        &mut self,
        seq: &mut SeqPages,
        rows: impl ExactSizeIterator<Item = Symbol>,
        is_prompt: bool,
    ) {
        let at = seq.len;
        seq.len += rows.len();
        seq.states.commit(&mut self.pools.states);
        if self.has_states && is_prompt && seq.len == seq.prompt_len {
            seq.states.keep_prompt_end(seq.len, &mut self.pools.states);
        }
        let Some(tree) = &mut self.tree else { return };
        if !is_prompt || seq.prompt.len() != at {
            return;
        }
        seq.prompt.extend(rows);
        while let Some(page) = seq.prompt[seq.n_nodes * PAGE_LEN..].get(..PAGE_LEN) {
            let idx = seq.n_nodes;
            let id = tree.insert(seq.place, page, seq.pages(idx), &mut self.pools);
            // Where another sequence has stored the same page, one of both is enough.
            let tables = seq.tables.iter_mut().zip(&mut self.pools.pages);
            for (group, (table, pool)) in tables.enumerate() {
                if let (Some(own), Some(stored)) = (table.page(idx), tree.page(id, group))
                    && own != stored
                {
                    pool.retain(stored);
                    table.replace(idx * PAGE_LEN, stored);
                    pool.release(own);
                }
            }
            tree.pin(id);
            if let Some(before) = seq.place.parent.replace(id) {
                tree.unpin(before);
            }
            seq.n_nodes += 1;
            let end = seq.n_nodes * PAGE_LEN;
            if let Some(state) = seq.wanted_state(end) {
                tree.hold_state(id, state, &mut self.pools);
            }
        }
    }

    /// The sequence's prompt has `len` rows: which of its states are kept follows from that.
    pub fn expect_prompt(&mut self, seq: &mut SeqPages, len: usize) {
        seq.prompt_len = len;
        seq.wanted_states.clear();
        if self.has_states && self.tree.is_some() {
            let last = len.saturating_sub(1) / PAGE_LEN * PAGE_LEN;
            let strides = (1..).map(|i| i * STATE_STRIDE).take_while(|&pos| pos < last);
            // An end in the middle of a page is kept by the sequence, see `clear`.
            for pos in strides.chain([last, len / PAGE_LEN * PAGE_LEN]) {
                seq.want_state(pos);
            }
        }
    }

    /// Another prompt has the first `len` tokens of the sequence's: it will want the state there.
    pub fn note_junction(&mut self, seq: &mut SeqPages, len: usize) {
        if self.has_states && self.tree.is_some() {
            seq.want_junction(len);
        }
    }

    /// Forgets the positions from `len` on. Where a window has released positions that would be
    /// seen again, it forgets all of them; where recurrent layers have no state after `len`, those
    /// from the last state before it on. Returns the positions that are left.
    pub fn truncate(&mut self, seq: &mut SeqPages, len: usize) -> usize {
        let mut len = len;
        let mut state = None;
        if self.has_states && len < seq.len {
            let Some((pos, found)) = self.last_state(seq, len) else {
                self.release(seq);
                return 0;
            };
            (len, state) = (pos, Some(found));
        }
        let tables = seq.tables.iter_mut().zip(&mut self.pools.pages).zip(&self.windows);
        let mut kept = true;
        for ((table, pool), window) in tables {
            kept = kept && table.truncate(len, *window, pool);
        }
        if !kept {
            self.release(seq);
            return 0;
        }
        if let Some(state) = state {
            seq.states.go_back(len, state, &mut self.pools.states);
        }
        seq.len = seq.len.min(len);
        seq.prompt.truncate(seq.len);
        while seq.n_nodes * PAGE_LEN > seq.len
            && let (Some(tree), Some(node)) = (&mut self.tree, seq.place.parent)
        {
            seq.place.parent = tree.parent(node);
            seq.place.parent.into_iter().for_each(|parent| tree.pin(parent));
            tree.unpin(node);
            seq.n_nodes -= 1;
        }
        seq.len
    }

    /// The last state after no more than `len` positions of a sequence that has more.
    fn last_state(&self, seq: &SeqPages, len: usize) -> Option<(usize, StateId)> {
        let own = seq.states.last_before(len);
        let tree = self.tree.as_ref();
        let nodes =
            std::iter::successors(seq.place.parent, |&id| tree.and_then(|tree| tree.parent(id)));
        let stored = (1..=seq.n_nodes).rev().map(|n| n * PAGE_LEN).zip(nodes);
        let stored = stored
            .filter(|&(end, _)| end <= len)
            .find_map(|(end, id)| Some((end, tree.and_then(|tree| tree.state(id))?)));
        own.into_iter().chain(stored).max_by_key(|&(pos, _)| pos)
    }

    /// Releases all pages of a sequence, the last of its prompt to the prefix cache.
    pub fn clear(&mut self, seq: &mut SeqPages) {
        let rest = &seq.prompt[seq.n_nodes * PAGE_LEN..];
        let state = seq.states.prompt_end(seq.prompt.len());
        if let Some(tree) = &mut self.tree
            && !rest.is_empty()
            && !tree.is_covered(seq.place, rest)
            // Without what a window has passed, or a state to continue from, it would be useless.
            && seq.pages(seq.n_nodes).all(|page| page.is_some())
            && (state.is_some() || !self.has_states)
        {
            let id = tree.insert(seq.place, rest, seq.pages(seq.n_nodes), &mut self.pools);
            if let Some(state) = state {
                tree.hold_state(id, state, &mut self.pools);
            }
        }
        self.release(seq);
    }

    /// Releases all pages of a sequence to the pools.
    fn release(&mut self, seq: &mut SeqPages) {
        for (table, pool) in seq.tables.iter_mut().zip(&mut self.pools.pages) {
            table.clear(pool);
        }
        seq.states.clear(&mut self.pools.states);
        seq.wanted_states.clear();
        if let (Some(tree), Some(node)) = (&mut self.tree, seq.place.parent.take()) {
            tree.unpin(node);
        }
        seq.prompt.clear();
        (seq.len, seq.n_nodes) = (0, 0);
    }

    /// Evicts all prefixes that no sequence continues from.
    pub fn clear_prefixes(&mut self) {
        if let Some(tree) = &mut self.tree {
            tree.clear(&mut self.pools);
        }
    }
}
