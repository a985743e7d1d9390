//! The cache as an engine uses it: sequences with their pages, and the prefixes that they share.
//!
//! A [`KvCache`] owns the pools of all layer groups and the prefix cache over them. A sequence
//! begins with what the prefix cache has of its prompt, grows, and stores the pages of its prompt
//! for others: full ones at once, and the last one, which it may still write to, when it ends. Pages
//! are shared until somebody writes to them: growing into a page that others hold takes a new page
//! and asks for a copy.

use crate::prefix::{NodeId, PrefixTree};
use crate::{BlockTable, CacheEvent, Error, PAGE_LEN, PageId, PagePool, PoolStats, PrefixStats};

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
    /// Tokens at the front that were run as a prompt, as far as the prefix cache is to know them.
    prompt: Vec<u32>,
    /// The page of the prefix cache that the sequence's next page will follow.
    node: Option<NodeId>,
    /// Pages from the front up to that one.
    n_nodes: usize,
}

impl SeqPages {
    /// The block table of each layer group.
    pub fn tables(&self) -> &[BlockTable] {
        &self.tables
    }

    /// Positions that hold keys and values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position does.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Of each layer group page `idx`, unless a window has let go of it.
    fn pages(&self, idx: usize) -> impl Iterator<Item = Option<PageId>> {
        self.tables.iter().map(move |table| table.page(idx))
    }
}

/// The pools of all layer groups, and the prefix cache over them.
///
/// A sequence begins with what the prefix cache has of its prompt, grows, and stores the pages of its
/// prompt for others. Pages are shared until somebody writes to them.
#[derive(Debug)]
pub struct KvCache {
    windows: Vec<Option<usize>>, // [n_groups]
    pools: Vec<PagePool>,        // [n_groups]
    tree: Option<PrefixTree>,
    max_pages: usize,
}

impl KvCache {
    /// A cache over groups of a window and a number of pages each, for sequences of up to
    /// `max_seq_len` positions.
    pub fn new(groups: &[(Option<usize>, usize)], max_seq_len: usize, prefixes: bool) -> Self {
        let windows: Vec<_> = groups.iter().map(|(window, _)| *window).collect();
        Self {
            tree: prefixes.then(|| PrefixTree::new(windows.clone())),
            windows,
            pools: groups.iter().map(|(_, n_pages)| PagePool::new(*n_pages)).collect(),
            max_pages: max_seq_len.div_ceil(PAGE_LEN),
        }
    }

    /// Of each layer group, what its pool has seen.
    pub fn pool_stats(&self) -> impl Iterator<Item = PoolStats> {
        self.pools.iter().map(PagePool::stats)
    }

    /// Whether the pages of prompts are kept for others.
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
            tables: self.pools.iter().map(table).collect(),
            len: 0,
            prompt: Vec::new(),
            node: None,
            n_nodes: 0,
        }
    }

    /// A sequence with the same positions, whose pages are shared until one of both writes.
    pub fn fork(&mut self, seq: &SeqPages) -> SeqPages {
        if let (Some(tree), Some(node)) = (&mut self.tree, seq.node) {
            tree.pin(node);
        }
        let tables = seq.tables.iter().zip(&mut self.pools).map(|(table, pool)| {
            table.pages().iter().for_each(|&page| pool.retain(page));
            let pages = table.pages().iter().copied();
            BlockTable::of(table.first_page(), pages, table.len(), self.max_pages)
        });
        SeqPages {
            tables: tables.collect(),
            len: seq.len,
            prompt: seq.prompt.clone(),
            node: seq.node,
            n_nodes: seq.n_nodes,
        }
    }

    /// Gives an empty sequence the pages that the prefix cache has for the beginning of `prompt`,
    /// up to `max_len` tokens; returns how many tokens they cover.
    ///
    /// # Panics
    /// If the sequence is not empty.
    pub fn adopt(&mut self, seq: &mut SeqPages, prompt: &[u32], max_len: usize) -> usize {
        assert!(seq.len == 0 && seq.node.is_none(), "a sequence that adopts pages is empty");
        let Some(tree) = &mut self.tree else { return 0 };
        let found = tree.lookup(prompt, max_len);
        if found.len == 0 {
            return 0;
        }
        for (group, table) in seq.tables.iter_mut().enumerate() {
            let pool = &mut self.pools[group];
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
        seq.node = seq.n_nodes.checked_sub(1).map(|last| found.path[last]);
        if let Some(node) = seq.node {
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
        if first_pages.len() != self.pools.len()
            || first_pages.iter().zip(&self.windows).any(|(&first, w)| first > needed(w))
        {
            return Ok(None);
        }
        for (group, &first) in first_pages.iter().enumerate() {
            let n = len.div_ceil(PAGE_LEN) - first;
            self.make_room(group, n);
            let mut pages = Vec::with_capacity(self.max_pages);
            if let Err(error) = self.pools[group].allocate(n, &mut pages) {
                self.release(&mut seq);
                return Err(error);
            }
            seq.tables[group] = BlockTable::of(first, pages, len, self.max_pages);
        }
        seq.len = len;
        Ok(Some(seq))
    }

    /// Evicts prefixes until a group has `n` free pages, or nothing is left to evict.
    fn make_room(&mut self, group: usize, n: usize) {
        let short = n.saturating_sub(self.pools[group].n_free());
        if short > 0
            && let Some(tree) = &mut self.tree
        {
            tree.evict(group, short, &mut self.pools);
        }
    }

    /// Whether there are pages for a sequence of `len` positions, beside `spare` more in each group.
    pub fn has_room(&self, len: usize, spare: usize) -> bool {
        self.pools.iter().zip(&self.windows).all(|(pool, window)| {
            let len = window.map_or(len, |w| len.min(w + PAGE_LEN));
            pool.n_available() >= len.div_ceil(PAGE_LEN) + spare
        })
    }

    /// Whether a sequence of `len` positions, run in steps of up to `max_step`, fits at all.
    pub fn could_hold(&self, len: usize, max_step: usize) -> bool {
        self.pools.iter().zip(&self.windows).all(|(pool, window)| {
            let len = window.map_or(len, |w| len.min(w + max_step + PAGE_LEN));
            pool.stats().total >= len.div_ceil(PAGE_LEN)
        })
    }

    /// Gets the pages for the positions up to `len`, and evicts prefixes for them where it must.
    /// Pages that a window has passed are given back. What must be copied before these positions
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
        copies: &mut Vec<PageCopy>,
    ) -> Result<(), Error> {
        for group in 0..self.pools.len() {
            let (table, pool) = (&mut seq.tables[group], &mut self.pools[group]);
            if let Some(window) = self.windows[group] {
                table.release_before((seq.len + 1).saturating_sub(window), pool);
            }
            let written = (!seq.len.is_multiple_of(PAGE_LEN)).then(|| table.locate(seq.len - 1).0);
            let shared = |pool: &PagePool| {
                written.filter(|&page| {
                    // Each copy that is planned releases one hold.
                    let is_left = |c: &&PageCopy| c.group == group && c.from == page;
                    let n_holds = pool.n_holds(page);
                    n_holds > 1 && n_holds - copies.iter().filter(is_left).count() > 1
                })
            };
            let missing = table.missing(len);
            let needed = missing + usize::from(shared(pool).is_some());
            self.make_room(group, needed);
            let pool = &mut self.pools[group];
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

    /// The copies that [`Self::grow`] asked for were made: the pages that they were read from go
    /// back.
    pub fn copied(&mut self, copies: &mut Vec<PageCopy>) {
        copies.drain(..).for_each(|copy| self.pools[copy.group].release(copy.from));
    }

    /// Takes back what [`Self::grow`] did beyond the sequence's positions. Of `copies`, which were
    /// not made, those for this sequence are undone: it has the shared page again.
    pub fn shrink(&mut self, seq: &mut SeqPages, copies: &[PageCopy]) {
        for (group, (table, pool)) in seq.tables.iter_mut().zip(&mut self.pools).enumerate() {
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

    /// Takes all pages back, whoever holds them, and forgets all prefixes. Sequences from before
    /// must not be used any more.
    pub fn reset(&mut self) {
        self.pools.iter_mut().for_each(PagePool::reset);
        self.tree.iter_mut().for_each(PrefixTree::reset);
    }

    /// Notes that keys and values were written for `tokens` after the sequence's positions, as
    /// part of its prompt or not. Full pages of the prompt are stored for other sequences.
    pub fn written(&mut self, seq: &mut SeqPages, tokens: &[u32], is_prompt: bool) {
        let at = seq.len;
        seq.len += tokens.len();
        let Some(tree) = &mut self.tree else { return };
        if !is_prompt || seq.prompt.len() != at {
            return;
        }
        seq.prompt.extend_from_slice(tokens);
        while let Some(page) = seq.prompt[seq.n_nodes * PAGE_LEN..].get(..PAGE_LEN) {
            let idx = seq.n_nodes;
            let id = tree.insert(seq.node, page, seq.pages(idx), &mut self.pools);
            // Where another sequence has stored the same page, one of both is enough.
            for (group, (table, pool)) in seq.tables.iter_mut().zip(&mut self.pools).enumerate() {
                if let (Some(own), Some(stored)) = (table.page(idx), tree.page(id, group))
                    && own != stored
                {
                    pool.retain(stored);
                    table.replace(idx * PAGE_LEN, stored);
                    pool.release(own);
                }
            }
            tree.pin(id);
            if let Some(before) = seq.node.replace(id) {
                tree.unpin(before);
            }
            seq.n_nodes += 1;
        }
    }

    /// Forgets the positions from `len` on. Where a window has let go of positions that would be
    /// seen again, it forgets all of them. Returns the positions that are left.
    pub fn truncate(&mut self, seq: &mut SeqPages, len: usize) -> usize {
        let tables = seq.tables.iter_mut().zip(&mut self.pools).zip(&self.windows);
        let mut kept = true;
        for ((table, pool), window) in tables {
            kept = kept && table.truncate(len, *window, pool);
        }
        if !kept {
            self.release(seq);
            return 0;
        }
        seq.len = seq.len.min(len);
        seq.prompt.truncate(seq.len);
        while seq.n_nodes * PAGE_LEN > seq.len
            && let (Some(tree), Some(node)) = (&mut self.tree, seq.node)
        {
            seq.node = tree.parent(node);
            seq.node.into_iter().for_each(|parent| tree.pin(parent));
            tree.unpin(node);
            seq.n_nodes -= 1;
        }
        seq.len
    }

    /// Gives all pages of a sequence back, the last of its prompt to the prefix cache.
    pub fn clear(&mut self, seq: &mut SeqPages) {
        let rest = &seq.prompt[seq.n_nodes * PAGE_LEN..];
        if let Some(tree) = &mut self.tree
            && !rest.is_empty()
            && !tree.is_covered(seq.node, rest)
        {
            // Without what a window has passed it would serve nobody.
            if seq.pages(seq.n_nodes).all(|page| page.is_some()) {
                tree.insert(seq.node, rest, seq.pages(seq.n_nodes), &mut self.pools);
            }
        }
        self.release(seq);
    }

    /// Gives all pages of a sequence back to the pools.
    fn release(&mut self, seq: &mut SeqPages) {
        for (table, pool) in seq.tables.iter_mut().zip(&mut self.pools) {
            table.clear(pool);
        }
        if let (Some(tree), Some(node)) = (&mut self.tree, seq.node.take()) {
            tree.unpin(node);
        }
        seq.prompt.clear();
        (seq.len, seq.n_nodes) = (0, 0);
    }

    /// Forgets all prefixes that no sequence goes on from.
    pub fn clear_prefixes(&mut self) {
        if let Some(tree) = &mut self.tree {
            tree.clear(&mut self.pools);
        }
    }
}
