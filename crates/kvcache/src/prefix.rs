//! The prefix cache: pages of prompts that were run before, found again by their rows.
//!
//! A tree for each variant, whose nodes are pages: a node's symbols follow those of its parent, so the
//! path from the root spells a prompt. All pages are full but the last of a prompt, which is a leaf. A node holds
//! one page of each layer group; of a group with a sliding window it may have released its page,
//! which then is missing only to prompts that end near by.
//! Children are sorted by their symbols, so a lookup compares these themselves and also finds the
//! page that agrees in its first few. Leaves that no sequence uses are evicted, the least
//! recently used first.
//!
//! A model with recurrent layers continues only from the end of a node that holds its state there. Such
//! nodes are few: the ends of prompts, where two prompts parted, and a choice of page boundaries.
//! Two prompts may then end in the same page, so of siblings one may begin with all of another.
//!
//! The idea of a tree over token pages is that of RadixAttention (Zheng et al., 2023, "SGLang").

mod states;

use crate::pool::Pools;
use crate::{PAGE_LEN, PageId, StateId, Symbol, Variant};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

/// A node of a [`PrefixTree`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId(u32);

/// What the prefix cache did since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PrefixStats {
    /// Prompt tokens that were looked up.
    pub queried_tokens: u64,
    /// Of these, tokens that were found.
    pub found_tokens: u64,
    /// Lookups that found anything.
    pub hits: u64,
    /// Lookups that found nothing.
    pub misses: u64,
    /// Pages of tokens that are in the tree.
    pub nodes: usize,
    /// Pages of tokens stored in the tree, in total.
    pub stored: u64,
    /// Pages of tokens evicted, in total.
    pub evicted: u64,
    /// Recurrent states that the tree holds.
    pub states: usize,
    /// Recurrent states stored in the tree, in total.
    pub states_stored: u64,
    /// Recurrent states evicted, in total.
    pub states_evicted: u64,
    /// Prompt tokens whose pages were found, but no state to continue from.
    pub stateless_tokens: u64,
}

/// A change of the prefix cache, for routers that send requests where their prefixes are. Hashes are
/// chained: they stand for a page's tokens and all before them. Pages with rows that are not tokens,
/// and those of variants other than the default, are not reported, as no text leads to them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheEvent {
    /// A page of tokens can be reused from now on.
    Stored {
        /// Its hash.
        hash: u64,
        /// The hash of the page before it.
        parent: Option<u64>,
        /// Its tokens.
        tokens: Vec<u32>, // [PAGE_LEN]
    },
    /// A page of tokens is gone.
    Removed {
        /// Its hash.
        hash: u64,
    },
    /// All pages are gone.
    Cleared,
}

/// A page that the tree holds.
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
    /// None where the page is not reported.
    hash: Option<u64>,
    pages: Vec<Option<Held>>, // [n_groups]
    /// The recurrent state after its last token.
    state: Option<HeldState>,
    last_used: u64,
    /// Sequences that continue from this node.
    pins: u32,
}

/// A recurrent state that the tree holds.
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

/// A place in the tree: below a page, or where a variant's prompts begin.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Place {
    pub(crate) variant: Variant,
    pub(crate) parent: Option<NodeId>,
}

/// The pages that a prompt can begin with.
#[derive(Debug, Default)]
pub(crate) struct Match {
    /// The tokens that they cover.
    pub(crate) len: usize,
    /// The nodes, from the root; the last may be covered in part.
    pub(crate) path: Vec<NodeId>,
    /// The recurrent state after them.
    pub(crate) state: Option<StateId>,
    /// The tokens that would be covered if there were a state wherever there are pages.
    pub(crate) junction: usize,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct PrefixTree {
    windows: Vec<Option<usize>>, // [n_groups]
    /// Whether sequences have recurrent states.
    has_states: bool,
    nodes: Vec<Option<Node>>,
    vacant: Vec<NodeId>,
    roots: Vec<NodeId>, // sorted by variant and symbols
    /// Nodes without children and pins, by their last use.
    leaves: BTreeSet<(u64, NodeId)>,
    /// Of each group with a window, its pages by their last use.
    windowed: Vec<BTreeSet<(u64, NodeId)>>, // [n_groups]
    /// Nodes with states, by the last use of these.
    stated: BTreeSet<(u64, NodeId)>,
    clock: u64,
    stats: PrefixStats,
    events: Option<Vec<CacheEvent>>,
}

/// How many of the first elements agree.
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
            windowed: windows.iter().map(|_| BTreeSet::new()).collect(),
            windows,
            has_states,
            stated: BTreeSet::new(),
            nodes: Vec::new(),
            vacant: Vec::new(),
            roots: Vec::new(),
            leaves: BTreeSet::new(),
            clock: 0,
            stats: PrefixStats::default(),
            events: None,
        }
    }

    pub(crate) fn stats(&self) -> PrefixStats {
        self.stats
    }

    /// Begins to keep what changes, until it is taken.
    pub(crate) fn keep_events(&mut self) {
        self.events.get_or_insert_default();
    }

    pub(crate) fn take_events(&mut self) -> Vec<CacheEvent> {
        self.events.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn tell(&mut self, event: impl FnOnce() -> CacheEvent) {
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

    /// The page that a node holds of a group.
    pub(crate) fn page(&self, id: NodeId, group: usize) -> Option<PageId> {
        self.node(id).pages[group].map(|held| held.page)
    }

    pub(crate) fn parent(&self, id: NodeId) -> Option<NodeId> {
        self.node(id).parent
    }

    /// The first page of the path that a group needs when `len` positions are adopted.
    pub(crate) fn first_needed(window: Option<usize>, len: usize) -> usize {
        window.map_or(0, |w| (len + 1).saturating_sub(w) / PAGE_LEN)
    }

    /// The longest beginning of `symbols`, of at most `max_len`, that every group has the pages for and
    /// that ends within none of the ranges of `whole`.
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

    /// The longest beginning of `symbols` that every group has the pages for: its nodes, how many
    /// symbols it covers, and how many it would if there were a state wherever there are pages.
    fn find(&self, variant: Variant, symbols: &[Symbol]) -> (Vec<NodeId>, usize, usize) {
        let max_len = symbols.len();
        let (mut path, mut len) = (Vec::new(), 0);
        let mut place = Place { variant, parent: None };
        while len < max_len {
            let wanted = &symbols[len..max_len.min(len + PAGE_LEN)];
            let children = self.children(place.parent);
            let at = self.position(place, wanted);
            // The neighbours in order are those that agree the longest.
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

    /// Whether every group still has the pages that `len` positions along `path` need.
    fn is_usable(&self, path: &[NodeId], len: usize) -> bool {
        self.windows.iter().enumerate().all(|(group, window)| {
            let needed = &path[Self::first_needed(*window, len).min(path.len())..];
            needed.iter().all(|&id| self.node(id).pages[group].is_some())
        })
    }

    /// Notes that the pages of `path` are used now, those of windows only as far as they are needed.
    fn touch(&mut self, path: &[NodeId], len: usize) {
        self.clock += 1;
        let now = self.clock;
        for (i, &id) in path.iter().enumerate() {
            let node = self.nodes[id.0 as usize].as_mut().expect("a path is of nodes that live");
            let before = std::mem::replace(&mut node.last_used, now);
            if self.leaves.remove(&(before, id)) {
                self.leaves.insert((now, id));
            }
            // Of the path's states the sequence continues from the last.
            if i + 1 == path.len()
                && let Some(held) = &mut node.state
            {
                self.stated.remove(&(held.last_used, id));
                held.last_used = now;
                self.stated.insert((now, id));
            }
            for (group, window) in self.windows.iter().enumerate() {
                if window.is_some()
                    && i >= Self::first_needed(*window, len)
                    && let Some(held) = &mut node.pages[group]
                {
                    self.windowed[group].remove(&(held.last_used, id));
                    held.last_used = now;
                    self.windowed[group].insert((now, id));
                }
            }
        }
    }

    /// Keeps a node from eviction.
    pub(crate) fn pin(&mut self, id: NodeId) {
        let node = self.node_mut(id);
        node.pins += 1;
        let key = (node.last_used, id);
        self.leaves.remove(&key);
    }

    /// Takes one [`Self::pin`] back.
    pub(crate) fn unpin(&mut self, id: NodeId) {
        let node = self.node_mut(id);
        assert!(node.pins > 0, "a node is unpinned that is not pinned");
        node.pins -= 1;
        self.list_if_leaf(id);
    }

    fn list_if_leaf(&mut self, id: NodeId) {
        let node = self.node(id);
        if node.pins == 0 && node.children.is_empty() {
            self.leaves.insert((node.last_used, id));
        }
    }

    /// The index that `symbols` have or would have among the children at a place.
    fn position(&self, place: Place, symbols: &[Symbol]) -> usize {
        self.children(place.parent).partition_point(|&id| {
            let node = self.node(id);
            (node.variant, &*node.symbols) < (place.variant, symbols)
        })
    }

    /// The child of exactly these symbols, if it is at index `at`.
    fn child(&self, place: Place, at: usize, symbols: &[Symbol]) -> Option<NodeId> {
        let child = self.children(place.parent).get(at).copied();
        child.filter(|&id| {
            let node = self.node(id);
            node.variant == place.variant && *node.symbols == *symbols
        })
    }

    /// Whether a longer page at the same place serves all that a page of `symbols` would.
    pub(crate) fn is_covered(&self, place: Place, symbols: &[Symbol]) -> bool {
        let next = self.children(place.parent).get(self.position(place, symbols));
        next.map(|&id| self.node(id)).is_some_and(|node| {
            node.symbols.len() > symbols.len()
                && node.variant == place.variant
                && node.symbols.starts_with(symbols)
                && node.has_all_pages()
                && !self.has_states
        })
    }

    /// The node of `symbols`, a page of them or less, at a place, made if there is none. It takes
    /// references to the `pages` (one per group, as far as they exist) that it does not hold yet.
    pub(crate) fn insert(
        &mut self,
        place: Place,
        symbols: &[Symbol],
        pages: impl Iterator<Item = Option<PageId>>,
        pools: &mut Pools,
    ) -> NodeId {
        self.clock += 1;
        let at = self.position(place, symbols);
        let id = self.child(place, at, symbols).unwrap_or_else(|| {
            let removed = self.removes_beginning(place, at, symbols, pools);
            self.add(place, at - usize::from(removed), symbols)
        });
        let node = self.nodes[id.0 as usize].as_mut().expect("found or just made");
        for (group, page) in pages.enumerate() {
            if let (None, Some(page)) = (node.pages[group], page) {
                pools.pages[group].hold_cached(page);
                node.pages[group] = Some(Held { page, last_used: self.clock });
                if self.windows[group].is_some() {
                    self.windowed[group].insert((self.clock, id));
                }
            }
        }
        id
    }

    /// Removes the child before index `at` if `symbols` begin with its own and it serves no prompt
    /// that these do not; returns whether it did.
    fn removes_beginning(
        &mut self,
        place: Place,
        at: usize,
        symbols: &[Symbol],
        pools: &mut Pools,
    ) -> bool {
        let before = at.checked_sub(1).map(|i| self.children(place.parent)[i]);
        let serves_less = |id: &NodeId| {
            let node = self.node(*id);
            // From a state continue those prompts that diverge from this one where it is.
            node.variant == place.variant
                && symbols.starts_with(&node.symbols)
                && node.state.is_none()
        };
        let begins = before.filter(serves_less);
        begins.into_iter().for_each(|id| self.remove(id, pools));
        begins.is_some()
    }

    fn add(&mut self, place: Place, at: usize, symbols: &[Symbol]) -> NodeId {
        let Place { variant, parent } = place;
        let parent_hash = parent.map(|id| self.node(id).hash);
        let tokens: Option<Vec<u32>> = symbols.iter().map(|symbol| symbol.token()).collect();
        let is_told = variant == Variant::default() && parent_hash != Some(None);
        let tokens = tokens.filter(|_| is_told);
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
                self.leaves.remove(&key);
            }
        }
        self.leaves.insert((self.clock, id));
        self.stats.nodes += 1;
        self.stats.stored += 1;
        if let (true, Some(hash), Some(tokens)) = (self.node(id).is_full(), hash, tokens) {
            self.tell(|| CacheEvent::Stored { hash, parent: parent_hash, tokens });
        }
        id
    }

    /// Frees up to `n` pages of a group that only the cache holds; returns how many.
    pub(crate) fn evict(&mut self, group: usize, n: usize, pools: &mut Pools) -> usize {
        let mut freed = 0;
        if self.windows[group].is_some() {
            let idle = |&&(_, id): &&(u64, NodeId)| {
                self.page(id, group).is_some_and(|page| pools.pages[group].is_idle(page))
            };
            let chosen: Vec<_> =
                self.windowed[group].iter().filter(idle).take(n).copied().collect();
            for key in chosen {
                self.windowed[group].remove(&key);
                let held = self.node_mut(key.1).pages[group].take();
                pools.pages[group].drop_cached(held.expect("listed with its page").page);
                freed += 1;
            }
        }
        while freed < n
            && let Some((_, id)) = self.leaves.pop_first()
        {
            let held = self.page(id, group);
            freed += usize::from(held.is_some_and(|page| pools.pages[group].is_idle(page)));
            self.remove(id, pools);
            self.stats.evicted += 1;
        }
        freed
    }

    /// Takes a leaf out of the tree, and releases its pages' references.
    fn remove(&mut self, id: NodeId, pools: &mut Pools) {
        self.drop_state(id, pools);
        let node = self.nodes[id.0 as usize].take().expect("a leaf lives");
        debug_assert!(node.children.is_empty() && node.pins == 0);
        self.leaves.remove(&(node.last_used, id));
        for (group, held) in node.pages.iter().enumerate() {
            if let Some(held) = held {
                self.windowed[group].remove(&(held.last_used, id));
                pools.pages[group].drop_cached(held.page);
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
            self.tell(|| CacheEvent::Removed { hash });
        }
    }

    /// Forgets everything, pinned or not. The pools are reset with it.
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
        self.tell(|| CacheEvent::Cleared);
    }

    /// Evicts everything that is not pinned.
    pub(crate) fn clear(&mut self, pools: &mut Pools) {
        while let Some((_, id)) = self.leaves.pop_first() {
            self.remove(id, pools);
            self.stats.evicted += 1;
        }
        if self.stats.nodes == 0 {
            self.tell(|| CacheEvent::Cleared);
        }
    }
}
