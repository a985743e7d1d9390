//! The prefix cache: a radix tree over the pages of earlier prompts.
//!
//! Each variant has its own tree. A node stands for the symbols of one page, and the path from a root
//! spells a prompt. Every node is full except the last one of a prompt, which is a leaf. A node holds
//! one page per layer group; the page of a group with a sliding window may have been evicted alone, and
//! then only prompts that end within a window of it miss it.
//!
//! Children are sorted by their symbols. A lookup compares symbols, not hashes, and finds a child that
//! agrees in its first symbols only. Leaves that no sequence continues from are evicted in LRU order.
//!
//! With recurrent layers, a prompt continues only from the end of a node that holds a recurrent state.
//! States are kept at the ends of prompts, where prompts diverged, and at some page boundaries. Two
//! prompts may end within the same page, so one sibling may begin with all symbols of another.
//!
//! The tree over token pages follows RadixAttention (Zheng et al., 2023, "SGLang").

mod states;

use crate::pool::{Pools, share};
use crate::{PAGE_LEN, PageId, StateId, Symbol, Variant};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

/// A node of a [`PrefixTree`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId(u32);

/// Counts of the prefix cache, and totals since it was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PrefixStats {
    /// Prompt tokens looked up so far.
    pub queried_tokens: u64,
    /// Prompt tokens found so far.
    pub found_tokens: u64,
    /// Lookups that found at least one token.
    pub hits: u64,
    /// Lookups that found no token.
    pub misses: u64,
    /// Nodes in the tree: prompt pages, each counted once for all layer groups.
    pub nodes: usize,
    /// Nodes added so far.
    pub stored: u64,
    /// Nodes evicted so far.
    pub evicted: u64,
    /// Pages that the tree holds in the pools of all layer groups.
    pub pages: usize,
    /// Pages of these pools, whoever holds them.
    pub total_pages: usize,
    /// Recurrent states that the tree holds.
    pub states: usize,
    /// Recurrent states added so far.
    pub states_stored: u64,
    /// Recurrent states evicted so far.
    pub states_evicted: u64,
    /// Prompt tokens whose pages were found but that had to be computed because no recurrent state
    /// follows them.
    pub stateless_tokens: u64,
}

impl PrefixStats {
    /// The share of the tokens looked up that were found: `found_tokens / queried_tokens`; 0 before
    /// the first lookup.
    pub fn hit_rate(&self) -> f64 {
        share(self.found_tokens as f64, self.queried_tokens as f64)
    }

    /// The share of all pages that the prefix cache holds, alone or with sequences:
    /// `pages / total_pages`; 0 without pages.
    pub fn utilization(&self) -> f64 {
        share(self.pages as f64, self.total_pages as f64)
    }
}

/// A change of the prefix cache, for routers that send a request to the server that has its prefix.
/// Hashes are chained: the hash of a page covers its tokens and all tokens before them. Events are
/// emitted only for full pages of the default variant whose rows, and all rows before them, are
/// tokens: a router cannot compute the hashes of others from a request's text.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheEvent {
    /// A page was added.
    Stored {
        /// Chained hash of the page.
        hash: u64,
        /// Chained hash of the preceding page; `None` for the first page of a prompt.
        parent: Option<u64>,
        /// Token ids of the page.
        tokens: Vec<u32>, // [PAGE_LEN]
    },
    /// A page was evicted.
    Removed {
        /// Chained hash of the page.
        hash: u64,
    },
    /// The whole cache was emptied.
    Cleared,
}

/// A page that a node holds, with the time of its last use on the tree's clock.
#[derive(Debug, Clone, Copy)]
struct Held {
    page: PageId,
    last_used: u64,
}

#[derive(Debug)]
struct Node {
    variant: Variant,
    parent: Option<NodeId>,
    children: Vec<NodeId>,  // sorted by symbols
    symbols: Box<[Symbol]>, // [1..=PAGE_LEN]
    /// The chained hash of [`CacheEvent`]; `None` if no events are emitted for the node.
    hash: Option<u64>,
    pages: Vec<Option<Held>>, // [n_groups]
    /// The recurrent state after the node's last symbol.
    state: Option<HeldState>,
    last_used: u64,
    /// Number of sequences that continue from this node. A pinned node is not evicted.
    pins: u32,
}

/// A recurrent state that a node holds, with the time of its last use.
#[derive(Debug, Clone, Copy)]
struct HeldState {
    state: StateId,
    last_used: u64,
}

impl Node {
    fn is_full(&self) -> bool {
        self.symbols.len() == PAGE_LEN
    }

    fn has_all_pages(&self) -> bool {
        self.pages.iter().all(Option::is_some)
    }
}

/// A position in the tree, given by the parent: a node, or the root level of a variant.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Place {
    pub(crate) variant: Variant,
    pub(crate) parent: Option<NodeId>,
}

/// The longest reusable prefix of a prompt.
#[derive(Debug, Default)]
pub(crate) struct Match {
    /// Number of symbols.
    pub(crate) len: usize,
    /// The nodes from the root on; the last one may match in its first symbols only.
    pub(crate) path: Vec<NodeId>,
    /// The recurrent state after `len` symbols.
    pub(crate) state: Option<StateId>,
    /// Number of symbols whose pages are there, whether or not a recurrent state follows them: the
    /// point at which the prompt diverges from earlier ones.
    pub(crate) junction: usize,
}

/// The trees of all variants, their LRU lists and statistics; see the [module](self).
#[derive(Debug)]
pub(crate) struct PrefixTree {
    windows: Vec<Option<usize>>, // [n_groups]
    /// Whether the model has recurrent layers.
    has_states: bool,
    nodes: Vec<Option<Node>>, // [node id]
    vacant: Vec<NodeId>,
    roots: Vec<NodeId>, // sorted by variant and symbols
    /// LRU list of the nodes that can be evicted: those without children and pins.
    leaves_by_use: BTreeSet<(u64, NodeId)>,
    /// LRU list of the pages of each group with a window; empty for other groups.
    pages_by_use: Vec<BTreeSet<(u64, NodeId)>>, // [n_groups]
    /// LRU list of the recurrent states.
    states_by_use: BTreeSet<(u64, NodeId)>,
    /// Time of the last lookup or insertion, in units of these.
    clock: u64,
    stats: PrefixStats,
    events: Option<Vec<CacheEvent>>,
}

/// Length of the common prefix.
fn common_len(a: &[Symbol], b: &[Symbol]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn chained_hash(parent: Option<u64>, tokens: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (parent, tokens).hash(&mut hasher);
    hasher.finish()
}

impl PrefixTree {
    pub(crate) fn new(windows: Vec<Option<usize>>, has_states: bool) -> Self {
        Self {
            pages_by_use: windows.iter().map(|_| BTreeSet::new()).collect(),
            windows,
            has_states,
            states_by_use: BTreeSet::new(),
            nodes: Vec::new(),
            vacant: Vec::new(),
            roots: Vec::new(),
            leaves_by_use: BTreeSet::new(),
            clock: 0,
            stats: PrefixStats::default(),
            events: None,
        }
    }

    pub(crate) fn stats(&self) -> PrefixStats {
        self.stats
    }

    /// Starts recording events for [`Self::take_events`].
    pub(crate) fn keep_events(&mut self) {
        self.events.get_or_insert_default();
    }

    pub(crate) fn take_events(&mut self) -> Vec<CacheEvent> {
        self.events.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn emit(&mut self, event: impl FnOnce() -> CacheEvent) {
        if let Some(events) = &mut self.events {
            events.push(event());
        }
    }

    fn node(&self, id: NodeId) -> &Node {
        self.nodes[id.0 as usize].as_ref().expect("an id is of a node that lives")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id.0 as usize].as_mut().expect("an id is of a node that lives")
    }

    fn children(&self, parent: Option<NodeId>) -> &[NodeId] {
        parent.map_or(&self.roots, |id| &self.node(id).children)
    }

    /// The page of `group` that a node holds.
    pub(crate) fn page(&self, id: NodeId, group: usize) -> Option<PageId> {
        self.node(id).pages[group].map(|held| held.page)
    }

    pub(crate) fn parent(&self, id: NodeId) -> Option<NodeId> {
        self.node(id).parent
    }

    /// Index of the first page that a group needs so that a sequence continues after `len` positions.
    pub(crate) fn first_needed(window: Option<usize>, len: usize) -> usize {
        window.map_or(0, |w| (len + 1).saturating_sub(w) / PAGE_LEN)
    }

    /// The longest prefix of `symbols`, at most `max_len` long, that all groups have the pages for. It
    /// does not end inside any range of `whole`. Updates statistics and LRU lists.
    pub(crate) fn lookup(
        &mut self,
        variant: Variant,
        symbols: &[Symbol],
        max_len: usize,
        whole: &[Range<usize>],
    ) -> Match {
        let mut max_len = max_len.min(symbols.len());
        let (path, len, junction) = loop {
            let (path, len, junction) = self.find(variant, &symbols[..max_len]);
            match whole.iter().find(|range| range.start < len && len < range.end) {
                Some(range) => max_len = range.start,
                None => break (path, len, junction),
            }
        };
        self.stats.stateless_tokens += (junction - len) as u64;
        self.stats.queried_tokens += symbols.len() as u64;
        self.stats.found_tokens += len as u64;
        *(if len > 0 { &mut self.stats.hits } else { &mut self.stats.misses }) += 1;
        self.touch(&path, len);
        let state = path.last().and_then(|&id| self.state(id));
        Match { len, path, state, junction }
    }

    /// The longest prefix of `symbols` that all groups have the pages for: its nodes, its length, and
    /// its length if recurrent states are not required.
    fn find(&self, variant: Variant, symbols: &[Symbol]) -> (Vec<NodeId>, usize, usize) {
        let max_len = symbols.len();
        let (mut path, mut len) = (Vec::new(), 0);
        let mut place = Place { variant, parent: None };
        while len < max_len {
            let wanted = &symbols[len..max_len.min(len + PAGE_LEN)];
            let children = self.children(place.parent);
            let at = self.child_idx(place, wanted);
            // In sorted order, the longest common prefix is with one of the two neighbors.
            let near = children[at.saturating_sub(1)..].iter().take(2);
            let agrees = |id: &NodeId| {
                let node = self.node(*id);
                let n = if node.variant == variant { common_len(&node.symbols, wanted) } else { 0 };
                (n, node.has_all_pages(), *id)
            };
            let Some((n, _, id)) = near.map(agrees).max().filter(|(n, ..)| *n > 0) else { break };
            path.push(id);
            len += n;
            if n < PAGE_LEN {
                break;
            }
            place.parent = Some(id);
        }
        while len > 0 && !self.is_usable(&path, len) {
            path.pop();
            len = path.len() * PAGE_LEN;
        }
        let junction = len;
        if self.has_states {
            len = self.end_at_state(&mut path, variant, symbols, len);
        }
        (path, len, junction)
    }

    /// Whether all groups have the pages that a sequence needs to continue after `len` positions.
    fn is_usable(&self, path: &[NodeId], len: usize) -> bool {
        self.windows.iter().enumerate().all(|(group, window)| {
            let needed = &path[Self::first_needed(*window, len).min(path.len())..];
            needed.iter().all(|&id| self.node(id).pages[group].is_some())
        })
    }

    /// Marks the nodes of `path` as used now, and of groups with a window the pages that `len` positions
    /// need.
    fn touch(&mut self, path: &[NodeId], len: usize) {
        self.clock += 1;
        let now = self.clock;
        for (i, &id) in path.iter().enumerate() {
            let node = self.nodes[id.0 as usize].as_mut().expect("a path is of nodes that live");
            let before = std::mem::replace(&mut node.last_used, now);
            if self.leaves_by_use.remove(&(before, id)) {
                self.leaves_by_use.insert((now, id));
            }
            // The sequence continues from the last node's state only.
            if i + 1 == path.len()
                && let Some(held) = &mut node.state
            {
                self.states_by_use.remove(&(held.last_used, id));
                held.last_used = now;
                self.states_by_use.insert((now, id));
            }
            for (group, window) in self.windows.iter().enumerate() {
                if window.is_some()
                    && i >= Self::first_needed(*window, len)
                    && let Some(held) = &mut node.pages[group]
                {
                    self.pages_by_use[group].remove(&(held.last_used, id));
                    held.last_used = now;
                    self.pages_by_use[group].insert((now, id));
                }
            }
        }
    }

    /// Protects a node from eviction until [`Self::unpin`].
    pub(crate) fn pin(&mut self, id: NodeId) {
        let node = self.node_mut(id);
        node.pins += 1;
        let key = (node.last_used, id);
        self.leaves_by_use.remove(&key);
    }

    /// Undoes one [`Self::pin`].
    pub(crate) fn unpin(&mut self, id: NodeId) {
        let node = self.node_mut(id);
        assert!(node.pins > 0, "a node is unpinned that is not pinned");
        node.pins -= 1;
        self.list_if_leaf(id);
    }

    fn list_if_leaf(&mut self, id: NodeId) {
        let node = self.node(id);
        if node.pins == 0 && node.children.is_empty() {
            self.leaves_by_use.insert((node.last_used, id));
        }
    }

    /// The index of the child with `symbols`, or the index at which it would be inserted.
    fn child_idx(&self, place: Place, symbols: &[Symbol]) -> usize {
        self.children(place.parent).partition_point(|&id| {
            let node = self.node(id);
            (node.variant, &*node.symbols) < (place.variant, symbols)
        })
    }

    /// The child at index `at`, if its symbols are exactly `symbols`.
    fn child(&self, place: Place, at: usize, symbols: &[Symbol]) -> Option<NodeId> {
        let child = self.children(place.parent).get(at).copied();
        child.filter(|&id| {
            let node = self.node(id);
            node.variant == place.variant && *node.symbols == *symbols
        })
    }

    /// Whether a longer sibling makes a node of `symbols` superfluous.
    pub(crate) fn is_covered(&self, place: Place, symbols: &[Symbol]) -> bool {
        let next = self.children(place.parent).get(self.child_idx(place, symbols));
        next.map(|&id| self.node(id)).is_some_and(|node| {
            node.symbols.len() > symbols.len()
                && node.variant == place.variant
                && node.symbols.starts_with(symbols)
                && node.has_all_pages()
                && !self.has_states
        })
    }

    /// Finds or adds the node of `symbols`, at most a page of them. For each group whose page the node
    /// lacks, it takes a reference to the page in `pages`, which has one entry per group.
    pub(crate) fn insert(
        &mut self,
        place: Place,
        symbols: &[Symbol],
        pages: impl Iterator<Item = Option<PageId>>,
        pools: &mut Pools,
    ) -> NodeId {
        self.clock += 1;
        let at = self.child_idx(place, symbols);
        let id = self.child(place, at, symbols).unwrap_or_else(|| {
            let removed = self.remove_prefix_of(place, at, symbols, pools);
            self.add(place, at - usize::from(removed), symbols)
        });
        let node = self.nodes[id.0 as usize].as_mut().expect("found or just made");
        for (group, page) in pages.enumerate() {
            if let (None, Some(page)) = (node.pages[group], page) {
                pools.pages[group].retain_cached(page);
                node.pages[group] = Some(Held { page, last_used: self.clock });
                if self.windows[group].is_some() {
                    self.pages_by_use[group].insert((self.clock, id));
                }
            }
        }
        id
    }

    /// Removes the child before index `at` if its symbols are a prefix of `symbols`, whose node then
    /// serves the same prompts; returns whether it did.
    fn remove_prefix_of(
        &mut self,
        place: Place,
        at: usize,
        symbols: &[Symbol],
        pools: &mut Pools,
    ) -> bool {
        let before = at.checked_sub(1).map(|i| self.children(place.parent)[i]);
        let is_prefix = |id: &NodeId| {
            let node = self.node(*id);
            // A node with a state stays: prompts that diverge right after it need the state.
            node.variant == place.variant
                && symbols.starts_with(&node.symbols)
                && node.state.is_none()
        };
        let prefix = before.filter(is_prefix);
        prefix.into_iter().for_each(|id| self.remove(id, pools));
        prefix.is_some()
    }

    fn add(&mut self, place: Place, at: usize, symbols: &[Symbol]) -> NodeId {
        let Place { variant, parent } = place;
        let parent_hash = parent.map(|id| self.node(id).hash);
        let tokens: Option<Vec<u32>> = symbols.iter().map(|symbol| symbol.token()).collect();
        let is_reported = variant == Variant::default() && parent_hash != Some(None);
        let tokens = tokens.filter(|_| is_reported);
        let parent_hash = parent_hash.flatten();
        let hash = tokens.as_ref().map(|tokens| chained_hash(parent_hash, tokens));
        let node = Node {
            variant,
            parent,
            children: Vec::new(),
            symbols: symbols.into(),
            hash,
            pages: vec![None; self.windows.len()],
            state: None,
            last_used: self.clock,
            pins: 0,
        };
        let id = match self.vacant.pop() {
            Some(id) => {
                self.nodes[id.0 as usize] = Some(node);
                id
            }
            None => {
                self.nodes.push(Some(node));
                NodeId(u32::try_from(self.nodes.len() - 1).expect("fewer nodes than pages"))
            }
        };
        match parent {
            None => self.roots.insert(at, id),
            Some(parent) => {
                let node = self.node_mut(parent);
                node.children.insert(at, id);
                let key = (node.last_used, parent);
                self.leaves_by_use.remove(&key);
            }
        }
        self.leaves_by_use.insert((self.clock, id));
        self.stats.nodes += 1;
        self.stats.stored += 1;
        if let (true, Some(hash), Some(tokens)) = (self.node(id).is_full(), hash, tokens) {
            self.emit(|| CacheEvent::Stored { hash, parent: parent_hash, tokens });
        }
        id
    }

    /// Frees up to `n` pages of a group that only the prefix cache holds; returns how many. Pages of a
    /// group with a window are evicted alone first, then whole leaves.
    pub(crate) fn evict(&mut self, group: usize, n: usize, pools: &mut Pools) -> usize {
        let mut freed = 0;
        if self.windows[group].is_some() {
            let idle = |&&(_, id): &&(u64, NodeId)| {
                self.page(id, group).is_some_and(|page| pools.pages[group].is_idle(page))
            };
            let chosen: Vec<_> =
                self.pages_by_use[group].iter().filter(idle).take(n).copied().collect();
            for key in chosen {
                self.pages_by_use[group].remove(&key);
                let held = self.node_mut(key.1).pages[group].take();
                pools.pages[group].release_cached(held.expect("listed with its page").page);
                freed += 1;
            }
        }
        while freed < n
            && let Some((_, id)) = self.leaves_by_use.pop_first()
        {
            let held = self.page(id, group);
            freed += usize::from(held.is_some_and(|page| pools.pages[group].is_idle(page)));
            self.remove(id, pools);
            self.stats.evicted += 1;
        }
        freed
    }

    /// Removes a leaf, and releases its pages and its state.
    fn remove(&mut self, id: NodeId, pools: &mut Pools) {
        self.drop_state(id, pools);
        let node = self.nodes[id.0 as usize].take().expect("a leaf lives");
        debug_assert!(node.children.is_empty() && node.pins == 0);
        self.leaves_by_use.remove(&(node.last_used, id));
        for (group, held) in node.pages.iter().enumerate() {
            if let Some(held) = held {
                self.pages_by_use[group].remove(&(held.last_used, id));
                pools.pages[group].release_cached(held.page);
            }
        }
        match node.parent {
            None => self.roots.retain(|&root| root != id),
            Some(parent) => {
                self.node_mut(parent).children.retain(|&child| child != id);
                self.list_if_leaf(parent);
            }
        }
        self.vacant.push(id);
        self.stats.nodes -= 1;
        if let (true, Some(hash)) = (node.is_full(), node.hash) {
            self.emit(|| CacheEvent::Removed { hash });
        }
    }

    /// Removes all nodes, pinned ones included, and keeps the totals. The caller resets the pools.
    pub(crate) fn reset(&mut self) {
        let PrefixStats { nodes, evicted, states, states_evicted, .. } = self.stats;
        let stats = PrefixStats {
            nodes: 0,
            evicted: evicted + nodes as u64,
            states: 0,
            states_evicted: states_evicted + states as u64,
            ..self.stats
        };
        let events = self.events.take();
        let windows = std::mem::take(&mut self.windows);
        *self = Self { stats, events, ..Self::new(windows, self.has_states) };
        self.emit(|| CacheEvent::Cleared);
    }

    /// Evicts all nodes that neither are pinned nor lead to a pinned one.
    pub(crate) fn clear(&mut self, pools: &mut Pools) {
        while let Some((_, id)) = self.leaves_by_use.pop_first() {
            self.remove(id, pools);
            self.stats.evicted += 1;
        }
        if self.stats.nodes == 0 {
            self.emit(|| CacheEvent::Cleared);
        }
    }
}
