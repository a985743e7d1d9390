//! The cache as an engine uses it: sequences with their pages, and the prefix cache.
//!
//! A [`KvCache`] owns the page pools of all layer groups and the prefix cache over them. A sequence
//! adopts the cached prefix of its prompt, grows, and stores its prompt's pages in the prefix cache:
//! full pages as soon as they are written, the partial last page when the sequence ends. Pages are
//! copy-on-write: a sequence that grows into a shared page gets a new page, and the caller is asked to
//! copy the contents.
//!
//! Recurrent layers have a state in place of keys and values ([`SeqStates`]). One pool serves all
//! recurrent layers of a model: an entry holds the states of all of them.

use crate::pool::{Pools, StatePool};
use crate::prefix::{Place, PrefixTree};
use crate::state::STATE_STRIDE;
use crate::{
    BlockTable, CacheEvent, Error, PAGE_LEN, PageId, PagePool, PoolStats, PrefixStats, SeqPages,
    SeqStates, StateId, Symbol, Variant,
};
use std::ops::Range;

/// A copy of a page's contents that the backend must make before the next step. `from` keeps its
/// reference until [`KvCache::copied`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageCopy {
    /// Index of the layer group.
    pub group: usize,
    /// Source page.
    pub from: PageId,
    /// Destination page.
    pub to: PageId,
}

/// The pages of one layer group of a [`KvCache`].
#[derive(Debug, Clone, Copy)]
pub struct GroupPool {
    /// The group's attention window, see [`GroupSpec::window`](crate::GroupSpec::window).
    pub window: Option<usize>,
    /// Number of pages.
    pub n_pages: usize,
}

/// The page pools of all layer groups and the prefix cache over them.
///
/// A step goes as follows: [`Self::grow`] allocates the positions of each sequence, the backend makes
/// the copies that it lists, [`Self::copied`] confirms them, the backend runs the step, and
/// [`Self::written`] records its rows.
#[derive(Debug)]
pub struct KvCache {
    windows: Vec<Option<usize>>, // [n_groups]
    pools: Pools,
    has_states: bool,
    tree: Option<PrefixTree>,
    max_pages: usize,
}

impl KvCache {
    /// A cache with a pool of pages for each layer group.
    /// `n_states` is the number of recurrent states, `None` for a model without recurrent layers.
    /// Sequences have at most `max_seq_len` positions. `prefixes` turns the prefix cache on.
    pub fn new(
        groups: &[GroupPool],
        n_states: Option<usize>,
        max_seq_len: usize,
        prefixes: bool,
    ) -> Self {
        let windows: Vec<_> = groups.iter().map(|group| group.window).collect();
        let has_states = n_states.is_some();
        Self {
            tree: prefixes.then(|| PrefixTree::new(windows.clone(), has_states)),
            windows,
            pools: Pools {
                pages: groups.iter().map(|group| PagePool::new(group.n_pages)).collect(),
                states: StatePool::new(n_states.unwrap_or(0)),
            },
            has_states,
            max_pages: max_seq_len.div_ceil(PAGE_LEN),
        }
    }

    /// Statistics of each layer group's pool.
    pub fn pool_stats(&self) -> impl Iterator<Item = PoolStats> {
        self.pools.pages.iter().map(PagePool::stats)
    }

    /// Whether the model has recurrent layers.
    pub fn has_states(&self) -> bool {
        self.has_states
    }

    /// Statistics of the pool of recurrent states; `None` if the model has no recurrent layers.
    pub fn state_stats(&self) -> Option<PoolStats> {
        self.has_states.then(|| self.pools.states.stats())
    }

    /// Whether there is a prefix cache.
    pub fn keeps_prefixes(&self) -> bool {
        self.tree.is_some()
    }

    /// Statistics of the prefix cache; all zero without one.
    pub fn prefix_stats(&self) -> PrefixStats {
        let Some(tree) = &self.tree else { return PrefixStats::default() };
        let (mut pages, mut total_pages) = (0, 0);
        for pool in self.pool_stats() {
            pages += pool.cached;
            total_pages += pool.total;
        }
        PrefixStats { pages, total_pages, ..tree.stats() }
    }

    /// Starts recording the changes of the prefix cache for [`Self::take_events`].
    pub fn keep_events(&mut self) {
        self.tree.iter_mut().for_each(PrefixTree::keep_events);
    }

    /// The changes of the prefix cache since the last call; none before [`Self::keep_events`].
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
            requested_states: Vec::new(),
        }
    }

    /// A sequence with the same positions. It shares the pages of `seq`; whichever grows first into a
    /// shared page copies it.
    pub fn fork(&mut self, seq: &SeqPages) -> SeqPages {
        if let (Some(tree), Some(node)) = (&mut self.tree, seq.place.parent) {
            tree.pin(node);
        }
        let tables = seq.tables.iter().zip(&mut self.pools.pages).map(|(table, pool)| {
            table.pages().iter().for_each(|&page| pool.retain(page));
            let pages = table.pages().iter().copied();
            BlockTable::from_pages(table.first_page(), pages, table.len(), self.max_pages)
        });
        SeqPages {
            tables: tables.collect(),
            len: seq.len,
            prompt: seq.prompt.clone(),
            place: seq.place,
            n_nodes: seq.n_nodes,
            states: seq.states.fork(&mut self.pools.states),
            prompt_len: seq.prompt_len,
            requested_states: Vec::new(),
        }
    }

    /// Starts an empty sequence of `variant` with the longest cached prefix of `prompt`, at most
    /// `max_len` rows; returns the number of rows that it covers. The prefix does not end inside any
    /// range of `whole`, whose rows must be computed together.
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
        seq.request_junction(found.junction);
        if found.len == 0 {
            return 0;
        }
        if let Some(state) = found.state.filter(|_| self.has_states) {
            seq.states.set_initial(self.pools.states.retain(state));
        }
        for (group, table) in seq.tables.iter_mut().enumerate() {
            let pool = &mut self.pools.pages[group];
            let first = PrefixTree::first_needed(self.windows[group], found.len);
            let pages = found.path[first..].iter().map(|&id| {
                let page = tree.page(id, group).expect("a match has the pages that it needs");
                pool.retain(page);
                page
            });
            *table = BlockTable::from_pages(first, pages, found.len, self.max_pages);
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

    /// A sequence of `len` positions with newly allocated pages, for contents that the caller restores.
    /// Group `group` has no pages before page `first_pages[group]`. Returns `None` if `first_pages` has
    /// another length than the groups, or if a group would lack a page that its window sees.
    ///
    /// # Errors
    /// [`Error::OutOfPages`] or [`Error::OutOfStates`] if other sequences hold too many.
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
            seq.tables[group] = BlockTable::from_pages(first, pages, len, self.max_pages);
        }
        if self.has_states && len > 0 {
            let taken = self.take_states(1);
            let begun = taken.map(|states| states.for_each(|state| seq.states.set_initial(state)));
            if let Err(error) = begun {
                self.release(&mut seq);
                return Err(error);
            }
        }
        seq.len = len;
        Ok(Some(seq))
    }

    /// Evicts from the prefix cache until a group has `n` free pages, or nothing is left to evict.
    fn make_room(&mut self, group: usize, n: usize) {
        let short = n.saturating_sub(self.pools.pages[group].n_free());
        if short > 0
            && let Some(tree) = &mut self.tree
        {
            tree.evict(group, short, &mut self.pools);
        }
    }

    /// Allocates `n` states, evicting from the prefix cache if too few are free.
    fn take_states(&mut self, n: usize) -> Result<impl Iterator<Item = StateId>, Error> {
        let short = n.saturating_sub(self.pools.states.n_free());
        if short > 0
            && let Some(tree) = &mut self.tree
        {
            tree.evict_states(short, &mut self.pools);
        }
        self.pools.states.take(n)
    }

    /// Whether a new sequence of `len` positions would fit now and leave `spare` pages available in
    /// each group.
    pub fn has_room(&self, len: usize, spare: usize) -> bool {
        let has_pages = self.pools.pages.iter().zip(&self.windows).all(|(pool, window)| {
            let len = window.map_or(len, |w| len.min(w + PAGE_LEN));
            pool.n_available() >= len.div_ceil(PAGE_LEN) + spare
        });
        // A step reads one state and writes another.
        has_pages && (!self.has_states || self.pools.states.n_available() >= 2)
    }

    /// Whether a sequence of `len` positions, run in steps of at most `max_step`, would fit in an
    /// empty cache.
    pub fn could_hold(&self, len: usize, max_step: usize) -> bool {
        let has_pages = self.pools.pages.iter().zip(&self.windows).all(|(pool, window)| {
            let len = window.map_or(len, |w| len.min(w + max_step + PAGE_LEN));
            pool.stats().total >= len.div_ceil(PAGE_LEN)
        });
        has_pages && (!self.has_states || self.pools.states.stats().total >= 2)
    }

    /// Allocates the pages for the positions up to `len`, evicting from the prefix cache if needed, and
    /// releases the pages that the window has passed.
    ///
    /// With recurrent layers it also allocates the states after each of the last `n_states` of these
    /// positions, and, if there is room, the states that the prefix cache shall keep. `n_states` is 0
    /// for positions that will be released without being written.
    ///
    /// Page copies that the backend must make before the step are appended to `copies`, one list for
    /// all sequences of a step. Call [`Self::copied`] when they are made. If they cannot be made, or if
    /// this fails, call [`Self::shrink`] for each sequence of the step.
    ///
    /// # Errors
    /// [`Error::OutOfPages`] or [`Error::OutOfStates`] if other sequences hold too many.
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
                    // Each listed copy will release one reference to its source.
                    let is_source = |c: &&PageCopy| c.group == group && c.from == page;
                    let n_refs = pool.n_refs(page);
                    n_refs > 1 && n_refs - copies.iter().filter(is_source).count() > 1
                })
            };
            let missing = table.missing(len);
            let needed = missing + usize::from(shared(pool).is_some());
            self.make_room(group, needed);
            let pool = &mut self.pools.pages[group];
            // The eviction may have released the only other reference to the page.
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

    /// Allocates the states that a step up to `len` positions writes, those after its last `n`
    /// positions and those that were requested.
    fn plan_states(&mut self, seq: &mut SeqPages, len: usize, n: usize) -> Result<(), Error> {
        let first = len + 1 - n;
        let SeqPages { states, requested_states, len: from, .. } = seq;
        self.take_states(n)?.zip(first..).for_each(|(state, pos)| states.add_pending(pos, state));
        for &pos in requested_states.iter().filter(|&&pos| pos > *from && pos < first) {
            if let Ok(taken) = self.take_states(1) {
                taken.for_each(|state| states.add_pending(pos, state));
            }
        }
        Ok(())
    }

    /// Confirms that `copies` were made: releases their source pages and empties the list.
    pub fn copied(&mut self, copies: &mut Vec<PageCopy>) {
        copies.drain(..).for_each(|copy| self.pools.pages[copy.group].release(copy.from));
    }

    /// Undoes [`Self::grow`] for a step that was not run. `copies` lists the copies of the step that
    /// were not made; where one was for this sequence, the sequence gets its shared page back.
    pub fn shrink(&mut self, seq: &mut SeqPages, copies: &[PageCopy]) {
        seq.states.discard_pending(&mut self.pools.states);
        for (group, (table, pool)) in seq.tables.iter_mut().zip(&mut self.pools.pages).enumerate() {
            // A window of 1 never refuses, and the dropped positions hold nothing yet.
            table.truncate(seq.len, Some(1), pool);
            let last = seq.len.checked_sub(1).and_then(|pos| table.page(pos / PAGE_LEN));
            let own = |copy: &&PageCopy| copy.group == group && Some(copy.to) == last;
            if let Some(copy) = copies.iter().find(own) {
                table.replace(seq.len - 1, copy.from);
                pool.release(copy.to);
            }
        }
    }

    /// Frees all pages and states, whoever holds them, and empties the prefix cache. Existing sequences
    /// must not be used afterwards.
    pub fn reset(&mut self) {
        self.pools.pages.iter_mut().for_each(PagePool::reset);
        self.pools.states.reset();
        self.tree.iter_mut().for_each(PrefixTree::reset);
    }

    /// Records that a step wrote `rows` after the sequence's positions. If they are part of the prompt,
    /// the pages that they fill go to the prefix cache.
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
            // If another sequence stored an equal page before, use that one and release this one's.
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
            if let Some(state) = seq.requested_state(end) {
                tree.hold_state(id, state, &mut self.pools);
            }
        }
    }

    /// Announces that the prompt has `len` rows, which decides at which positions recurrent states are
    /// kept.
    pub fn expect_prompt(&mut self, seq: &mut SeqPages, len: usize) {
        seq.prompt_len = len;
        seq.requested_states.clear();
        if self.has_states && self.tree.is_some() {
            let last = len.saturating_sub(1) / PAGE_LEN * PAGE_LEN;
            let strides = (1..).map(|i| i * STATE_STRIDE).take_while(|&pos| pos < last);
            // The state at an end within a page is kept by the sequence until `clear`.
            for pos in strides.chain([last, len / PAGE_LEN * PAGE_LEN]) {
                seq.request_state(pos);
            }
        }
    }

    /// Announces that another prompt shares the first `len` rows of the sequence's prompt, so that a
    /// recurrent state is kept for it near there.
    pub fn note_junction(&mut self, seq: &mut SeqPages, len: usize) {
        if self.has_states && self.tree.is_some() {
            seq.request_junction(len);
        }
    }

    /// Drops the positions from `len` on, and returns the number of positions that are left. These are
    /// fewer than `len` if no recurrent state is after exactly `len` positions: then the sequence ends
    /// at the last state before. None is left if a window released positions that would be seen again.
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
            seq.states.rewind(len, state, &mut self.pools.states);
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

    /// The latest state after at most `len` positions, among those of the sequence and of its prefix in
    /// the tree, and its position. The sequence has more than `len` positions.
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

    /// Releases all pages and states of a sequence. The partial last page of its prompt goes to the
    /// prefix cache.
    pub fn clear(&mut self, seq: &mut SeqPages) {
        let rest = &seq.prompt[seq.n_nodes * PAGE_LEN..];
        let state = seq.states.prompt_end(seq.prompt.len());
        if let Some(tree) = &mut self.tree
            && !rest.is_empty()
            && !tree.is_covered(seq.place, rest)
            // Nothing could continue from the page if a group lacked it, or without a state.
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

    /// Releases all pages and states of a sequence to the pools.
    fn release(&mut self, seq: &mut SeqPages) {
        for (table, pool) in seq.tables.iter_mut().zip(&mut self.pools.pages) {
            table.clear(pool);
        }
        seq.states.clear(&mut self.pools.states);
        seq.requested_states.clear();
        if let (Some(tree), Some(node)) = (&mut self.tree, seq.place.parent.take()) {
            tree.unpin(node);
        }
        seq.prompt.clear();
        (seq.len, seq.n_nodes) = (0, 0);
    }

    /// Empties the prefix cache, except for prefixes that a sequence continues from.
    pub fn clear_prefixes(&mut self) {
        if let Some(tree) = &mut self.tree {
            tree.clear(&mut self.pools);
        }
    }
}
