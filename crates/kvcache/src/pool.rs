//! Pools of reference-counted pages and recurrent states.
//!
//! A pool hands out page numbers; the memory behind them belongs to a backend. Pages are counted
//! because several sequences may share one. The prefix cache's reference is told apart from the
//! others: a page that only the prefix cache holds is *idle*, and can be evicted.

use crate::Error;

/// The number of a page in its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageId(pub u32);

/// Page counts of a pool, and totals since it was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// All pages of the pool.
    pub total: usize,
    /// Pages with at least one reference, idle ones included.
    pub used: usize,
    /// Pages whose only reference is the prefix cache's.
    pub idle: usize,
    /// Pages that the prefix cache holds, shared ones included.
    pub cached: usize,
    /// The maximum of `used` so far.
    pub peak_used: usize,
    /// Pages allocated so far; a page counts again each time it is reused.
    pub allocated: u64,
    /// Pages returned to the free list so far.
    pub released: u64,
}

impl PoolStats {
    /// The share of pages that sequences hold: `(used - idle) / total`; 0 for an empty pool.
    pub fn utilization(&self) -> f64 {
        share(self.used.saturating_sub(self.idle) as f64, self.total as f64)
    }
}

/// `part / whole`; 0 if `whole` is 0.
pub(crate) fn share(part: f64, whole: f64) -> f64 {
    if whole == 0.0 { 0.0 } else { part / whole }
}

/// A fixed number of reference-counted pages.
#[derive(Debug)]
pub struct PagePool {
    free: Vec<PageId>,
    refs: Vec<u32>, // [n_pages]
    /// Whether the prefix cache holds one of the page's references.
    cached: Vec<bool>, // [n_pages]
    stats: PoolStats,
}

impl PagePool {
    /// A pool of `n_pages` free pages.
    pub fn new(n_pages: usize) -> Self {
        let last = u32::try_from(n_pages).expect("page numbers fit 32 bits");
        Self {
            free: (0..last).rev().map(PageId).collect(),
            refs: vec![0; n_pages],
            cached: vec![false; n_pages],
            stats: PoolStats { total: n_pages, ..PoolStats::default() },
        }
    }

    /// Number of pages without references.
    pub fn n_free(&self) -> usize {
        self.free.len()
    }

    /// Number of pages that are free or could be evicted.
    pub fn n_available(&self) -> usize {
        self.free.len() + self.stats.idle
    }

    /// Number of references to `page`.
    pub fn n_refs(&self, page: PageId) -> usize {
        self.refs[page.0 as usize] as usize
    }

    /// Whether the prefix cache holds the only reference to `page`.
    pub fn is_idle(&self, page: PageId) -> bool {
        self.refs[page.0 as usize] == 1 && self.cached[page.0 as usize]
    }

    /// Counts of pages, and totals since the pool was created.
    pub fn stats(&self) -> PoolStats {
        self.stats
    }

    /// Allocates `n` pages with one reference each, and appends them to `pages`.
    ///
    /// # Errors
    /// [`Error::OutOfPages`] if fewer than `n` pages are free; then none is allocated.
    pub fn allocate(&mut self, n: usize, pages: &mut Vec<PageId>) -> Result<(), Error> {
        let Some(kept) = self.free.len().checked_sub(n) else {
            let (free, total) = (self.free.len(), self.refs.len());
            return Err(Error::OutOfPages { needed: n, free, total });
        };
        pages.extend(self.free[kept..].iter().rev());
        for page in self.free.drain(kept..) {
            debug_assert_eq!(self.refs[page.0 as usize], 0);
            self.refs[page.0 as usize] = 1;
        }
        self.stats.allocated += n as u64;
        self.stats.used += n;
        self.stats.peak_used = self.stats.peak_used.max(self.stats.used);
        Ok(())
    }

    /// Allocates one page with one reference.
    ///
    /// # Errors
    /// [`Error::OutOfPages`] if no page is free.
    pub fn take(&mut self) -> Result<PageId, Error> {
        let Some(page) = self.free.pop() else {
            return Err(Error::OutOfPages { needed: 1, free: 0, total: self.refs.len() });
        };
        debug_assert_eq!(self.refs[page.0 as usize], 0);
        self.refs[page.0 as usize] = 1;
        self.stats.allocated += 1;
        self.stats.used += 1;
        self.stats.peak_used = self.stats.peak_used.max(self.stats.used);
        Ok(page)
    }

    /// Frees every page, whatever its references. The totals in the statistics stay.
    pub(crate) fn reset(&mut self) {
        let PoolStats { total, used, peak_used, allocated, released, .. } = self.stats;
        let released = released + used as u64;
        *self = Self::new(total);
        // `Self::new` has set the counts of pages to those of a free pool.
        self.stats = PoolStats { peak_used, allocated, released, ..self.stats };
    }

    /// Adds a reference to `page`.
    ///
    /// # Panics
    /// If the page has none.
    pub fn retain(&mut self, page: PageId) {
        let refs = &mut self.refs[page.0 as usize];
        assert!(*refs > 0, "page {} is shared but has no references", page.0);
        *refs += 1;
        self.stats.idle -= usize::from(*refs == 2 && self.cached[page.0 as usize]);
    }

    /// Adds the prefix cache's reference to `page`.
    ///
    /// # Panics
    /// If the page has no references, or has the prefix cache's already.
    pub(crate) fn retain_cached(&mut self, page: PageId) {
        let cached = std::mem::replace(&mut self.cached[page.0 as usize], true);
        assert!(!cached, "page {} is twice in the prefix cache", page.0);
        let refs = &mut self.refs[page.0 as usize];
        assert!(*refs > 0, "page {} is cached but has no references", page.0);
        *refs += 1;
        self.stats.cached += 1;
    }

    /// Releases the prefix cache's reference to `page`.
    ///
    /// # Panics
    /// If the prefix cache does not hold the page.
    pub(crate) fn release_cached(&mut self, page: PageId) {
        self.stats.idle -= usize::from(self.is_idle(page));
        let cached = std::mem::replace(&mut self.cached[page.0 as usize], false);
        assert!(cached, "page {} is not in the prefix cache", page.0);
        self.stats.cached -= 1;
        self.release(page);
    }

    /// Releases one reference to `page`, and frees the page with the last one.
    ///
    /// # Panics
    /// If the page has none.
    pub fn release(&mut self, page: PageId) {
        let refs = &mut self.refs[page.0 as usize];
        assert!(*refs > 0, "page {} is released but has no references", page.0);
        *refs -= 1;
        if *refs == 0 {
            self.free.push(page);
            self.stats.used -= 1;
            self.stats.released += 1;
        }
        self.stats.idle += usize::from(self.is_idle(page));
    }
}

/// The number of a recurrent state in its pool. A recurrent state is what the recurrent layers of a
/// model carry from one position to the next, for all these layers together.
///
/// A written state never changes: a step reads one state and writes others. So states are shared
/// without copying, and a step that fails leaves all earlier states intact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StateId(pub u32);

/// A fixed number of reference-counted recurrent states.
#[derive(Debug)]
pub(crate) struct StatePool(PagePool);

impl StatePool {
    pub(crate) fn new(n_states: usize) -> Self {
        Self(PagePool::new(n_states))
    }

    pub(crate) fn n_free(&self) -> usize {
        self.0.n_free()
    }

    pub(crate) fn n_available(&self) -> usize {
        self.0.n_available()
    }

    pub(crate) fn stats(&self) -> PoolStats {
        self.0.stats()
    }

    pub(crate) fn is_idle(&self, state: StateId) -> bool {
        self.0.is_idle(PageId(state.0))
    }

    /// Allocates `n` states with one reference each.
    ///
    /// # Errors
    /// [`Error::OutOfStates`] if fewer than `n` states are free; then none is allocated.
    pub(crate) fn take(&mut self, n: usize) -> Result<impl Iterator<Item = StateId>, Error> {
        let (free, total) = (self.n_free(), self.stats().total);
        if n > free {
            return Err(Error::OutOfStates { needed: n, free, total });
        }
        Ok((0..n).filter_map(|_| self.0.take().ok()).map(|page| StateId(page.0)))
    }

    pub(crate) fn retain(&mut self, state: StateId) -> StateId {
        self.0.retain(PageId(state.0));
        state
    }

    pub(crate) fn retain_cached(&mut self, state: StateId) {
        self.0.retain_cached(PageId(state.0));
    }

    pub(crate) fn release_cached(&mut self, state: StateId) {
        self.0.release_cached(PageId(state.0));
    }

    pub(crate) fn release(&mut self, state: StateId) {
        self.0.release(PageId(state.0));
    }

    pub(crate) fn reset(&mut self) {
        self.0.reset();
    }
}

/// All pools of a cache.
#[derive(Debug)]
pub(crate) struct Pools {
    pub(crate) pages: Vec<PagePool>, // [n_groups]
    pub(crate) states: StatePool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_and_go() {
        let mut pool = PagePool::new(3);
        let mut pages = Vec::new();
        pool.allocate(2, &mut pages).unwrap();
        assert_eq!(pages, [PageId(0), PageId(1)]);
        let err = pool.allocate(2, &mut pages).unwrap_err();
        assert_eq!(err, Error::OutOfPages { needed: 2, free: 1, total: 3 });
        assert_eq!(pages.len(), 2, "nothing is taken on failure");
        assert_eq!(pool.take(), Ok(PageId(2)));
        assert_eq!(pool.take(), Err(Error::OutOfPages { needed: 1, free: 0, total: 3 }));
        pool.release(PageId(2));

        pool.retain(PageId(1));
        pool.release(PageId(1));
        assert_eq!(pool.n_free(), 1, "a shared page stays");
        pool.release(PageId(1));
        assert_eq!(pool.n_free(), 2);
        let stats = pool.stats();
        assert_eq!((stats.used, stats.peak_used, stats.allocated, stats.released), (1, 3, 3, 2));

        pool.reset();
        let stats = pool.stats();
        assert_eq!((stats.used, stats.peak_used, stats.allocated, stats.released), (0, 3, 3, 3));
        assert_eq!((pool.n_free(), pool.n_refs(PageId(0))), (3, 0));
    }

    #[test]
    fn utilization_counts_pages_that_cannot_be_evicted() {
        assert_eq!(PoolStats::default().utilization(), 0.0);
        let mut pool = PagePool::new(8);
        let mut pages = Vec::new();
        pool.allocate(3, &mut pages).unwrap();
        pool.retain_cached(pages[0]);
        assert_eq!((pool.stats().cached, pool.stats().idle), (1, 0));
        assert_eq!(pool.stats().utilization(), 3.0 / 8.0);
        pool.release(pages[0]);
        assert_eq!((pool.stats().cached, pool.stats().idle), (1, 1));
        assert_eq!(pool.stats().utilization(), 2.0 / 8.0);
        pool.reset();
        assert_eq!((pool.stats().cached, pool.stats().utilization()), (0, 0.0));
    }

    #[test]
    #[should_panic(expected = "page 2 is released but has no references")]
    fn releasing_a_free_page_is_a_bug() {
        PagePool::new(3).release(PageId(2));
    }
}
