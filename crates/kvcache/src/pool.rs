//! The pool of pages: which are held, and how many are free.
//!
//! The pool hands out page numbers; the memory behind them belongs to a
//! backend. A page is counted, so several sequences can share it. The prefix
//! cache's reference is kept separate from the others: a page that only it holds is
//! idle, and can be had by evicting it.

use crate::Error;

/// The number of a page in its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageId(pub u32);

/// What happened in a pool since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Pages in the pool.
    pub total: usize,
    /// Pages that are held.
    pub used: usize,
    /// Of these, pages that the prefix cache alone holds.
    pub idle: usize,
    /// The maximum number of pages that were held at one time.
    pub peak_used: usize,
    /// Pages handed out, in total.
    pub allocated: u64,
    /// Pages released, in total.
    pub released: u64,
}

/// A fixed number of pages with reference counts.
#[derive(Debug)]
pub struct PagePool {
    free: Vec<PageId>,
    refs: Vec<u32>,
    /// Whether one of a page's references is the prefix cache's.
    cached: Vec<bool>,
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

    /// Pages that are not held.
    pub fn n_free(&self) -> usize {
        self.free.len()
    }

    /// Pages that are free or idle.
    pub fn n_available(&self) -> usize {
        self.free.len() + self.stats.idle
    }

    /// How many references `page` has.
    pub fn n_holds(&self, page: PageId) -> usize {
        self.refs[page.0 as usize] as usize
    }

    /// Whether the prefix cache alone holds `page`.
    pub fn is_idle(&self, page: PageId) -> bool {
        self.refs[page.0 as usize] == 1 && self.cached[page.0 as usize]
    }

    /// What happened so far.
    pub fn stats(&self) -> PoolStats {
        self.stats
    }

    /// Takes `n` pages, each held once, and appends them to `pages`. Takes none
    /// when fewer than `n` are free.
    ///
    /// # Errors
    /// [`Error::OutOfPages`] when fewer than `n` pages are free.
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

    /// Takes one page, held once.
    ///
    /// # Errors
    /// [`Error::OutOfPages`] when none is free.
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

    /// Reclaims every page, even held ones. The counts of what happened so far stay.
    pub(crate) fn reset(&mut self) {
        let PoolStats { total, used, peak_used, allocated, released, .. } = self.stats;
        let released = released + used as u64;
        *self = Self::new(total);
        self.stats = PoolStats { peak_used, allocated, released, ..self.stats };
    }

    /// Holds `page` once more.
    ///
    /// # Panics
    /// If the page is not held.
    pub fn retain(&mut self, page: PageId) {
        let refs = &mut self.refs[page.0 as usize];
        assert!(*refs > 0, "page {} is shared but has no references", page.0);
        *refs += 1;
        self.stats.idle -= usize::from(*refs == 2 && self.cached[page.0 as usize]);
    }

    /// Holds `page` once more, for the prefix cache.
    ///
    /// # Panics
    /// If the page is not held, or the prefix cache holds it already.
    pub(crate) fn hold_cached(&mut self, page: PageId) {
        let cached = std::mem::replace(&mut self.cached[page.0 as usize], true);
        assert!(!cached, "page {} is twice in the prefix cache", page.0);
        let refs = &mut self.refs[page.0 as usize];
        assert!(*refs > 0, "page {} is cached but has no references", page.0);
        *refs += 1;
    }

    /// Releases the prefix cache's reference to `page`.
    ///
    /// # Panics
    /// If the prefix cache does not hold the page.
    pub(crate) fn drop_cached(&mut self, page: PageId) {
        self.stats.idle -= usize::from(self.is_idle(page));
        let cached = std::mem::replace(&mut self.cached[page.0 as usize], false);
        assert!(cached, "page {} is not in the prefix cache", page.0);
        self.release(page);
    }

    /// Releases one reference to `page`; the last one frees it.
    ///
    /// # Panics
    /// If the page is not held.
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

/// The number of a recurrent state in its pool: what the layers that keep no keys and values know of
/// all positions up to one.
///
/// A state is not changed once it was written. A step reads one and writes others, so sharing one
/// takes no copy, and a step that fails leaves everything as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StateId(pub u32);

/// A fixed number of recurrent states with reference counts.
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

    /// Takes `n` states, each held once; none when fewer are free.
    ///
    /// # Errors
    /// [`Error::OutOfStates`] when fewer than `n` states are free.
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

    pub(crate) fn hold_cached(&mut self, state: StateId) {
        self.0.hold_cached(PageId(state.0));
    }

    pub(crate) fn drop_cached(&mut self, state: StateId) {
        self.0.drop_cached(PageId(state.0));
    }

    pub(crate) fn release(&mut self, state: StateId) {
        self.0.release(PageId(state.0));
    }

    pub(crate) fn reset(&mut self) {
        self.0.reset();
    }
}

/// The pools of a cache.
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
        assert_eq!((pool.n_free(), pool.n_holds(PageId(0))), (3, 0));
    }

    #[test]
    #[should_panic(expected = "page 2 is released but has no references")]
    fn releasing_a_free_page_is_a_bug() {
        PagePool::new(3).release(PageId(2));
    }
}
