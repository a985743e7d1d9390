//! Block tables: the pages that hold the positions of one sequence in one layer group.
//!
//! A table covers positions `start()..len()`, in pages of [`PAGE_LEN`]. With a sliding window,
//! `start()` moves up and the pages in front of it return to the pool.

use crate::{Error, PAGE_LEN, PageId, PagePool};

/// The pages of one sequence in one layer group.
///
/// `pages()[i]` holds the [`PAGE_LEN`] positions that begin at `(first_page() + i) * PAGE_LEN`.
#[derive(Debug, Default)]
pub struct BlockTable {
    pages: Vec<PageId>,
    first_page: usize,
    len: usize,
}

impl BlockTable {
    /// An empty table that allocates no memory up to `max_pages` pages.
    pub fn with_capacity(max_pages: usize) -> Self {
        Self { pages: Vec::with_capacity(max_pages), first_page: 0, len: 0 }
    }

    /// A table of `len` positions, whose first `first_page` pages were released and whose others are
    /// `pages`. It takes over one reference to each, and allocates no memory up to `max_pages` pages.
    pub(crate) fn from_pages(
        first_page: usize,
        pages: impl IntoIterator<Item = PageId>,
        len: usize,
        max_pages: usize,
    ) -> Self {
        let mut table = Self { pages: Vec::with_capacity(max_pages), first_page, len };
        table.pages.extend(pages);
        assert_eq!(
            first_page + table.pages.len(),
            len.div_ceil(PAGE_LEN),
            "pages cover the length"
        );
        table
    }

    /// Replaces the page that holds `pos`, and returns the old one.
    pub(crate) fn replace(&mut self, pos: usize, page: PageId) -> PageId {
        std::mem::replace(&mut self.pages[pos / PAGE_LEN - self.first_page], page)
    }

    /// Page `idx` of the sequence, counted from position 0; `None` if it was released.
    pub(crate) fn page(&self, idx: usize) -> Option<PageId> {
        self.pages.get(idx.checked_sub(self.first_page)?).copied()
    }

    /// Number of pages that [`Self::grow`] to `len` would allocate.
    pub(crate) fn missing(&self, len: usize) -> usize {
        len.div_ceil(PAGE_LEN).saturating_sub(self.first_page + self.pages.len())
    }

    /// The pages that are held, in order of position.
    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }

    /// Number of pages that were released at the front.
    pub fn first_page(&self) -> usize {
        self.first_page
    }

    /// One past the last position that the table covers.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the table covers no position.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first position whose page is still held.
    pub fn start(&self) -> usize {
        self.first_page * PAGE_LEN
    }

    /// The page that holds `pos`, and the index of `pos` within it.
    ///
    /// # Panics
    /// If the table does not cover `pos`.
    pub fn locate(&self, pos: usize) -> (PageId, usize) {
        assert!(
            pos >= self.start() && pos < self.len,
            "position {pos} is outside {}..{}",
            self.start(),
            self.len
        );
        (self.pages[pos / PAGE_LEN - self.first_page], pos % PAGE_LEN)
    }

    /// Extends the table to `len` positions, allocating the missing pages. On an error the table is
    /// unchanged. A `len` below the current one has no effect.
    ///
    /// # Errors
    /// [`Error::OutOfPages`] if the pool has too few free pages.
    pub fn grow(&mut self, len: usize, pool: &mut PagePool) -> Result<(), Error> {
        if len > self.len {
            pool.allocate(self.missing(len), &mut self.pages)?;
            self.len = len;
        }
        Ok(())
    }

    /// Releases the pages all of whose positions are before `pos`.
    pub fn release_before(&mut self, pos: usize, pool: &mut PagePool) {
        let keep_from = pos.min(self.len) / PAGE_LEN;
        let n = keep_from.saturating_sub(self.first_page).min(self.pages.len());
        self.pages.drain(..n).for_each(|page| pool.release(page));
        self.first_page += n;
    }

    /// Drops the positions from `len` on and releases their pages.
    ///
    /// Returns false, and changes nothing, if the query at `len` would see a position whose page was
    /// released already. The caller then clears the table and computes the sequence anew.
    pub fn truncate(&mut self, len: usize, window: Option<usize>, pool: &mut PagePool) -> bool {
        let needed_from = window.map_or(0, |w| (len + 1).saturating_sub(w));
        if len < self.len && needed_from < self.start() {
            return false;
        }
        if len < self.len {
            let keep = len.div_ceil(PAGE_LEN).saturating_sub(self.first_page);
            self.pages.drain(keep.min(self.pages.len())..).for_each(|page| pool.release(page));
            self.len = len;
        }
        true
    }

    /// Releases all pages and empties the table.
    pub fn clear(&mut self, pool: &mut PagePool) {
        self.pages.drain(..).for_each(|page| pool.release(page));
        self.first_page = 0;
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_by_pages_and_locates_positions() {
        let mut pool = PagePool::new(4);
        let mut table = BlockTable::default();
        table.grow(PAGE_LEN + 1, &mut pool).unwrap();
        assert_eq!(table.pages().len(), 2);
        table.grow(2 * PAGE_LEN, &mut pool).unwrap();
        assert_eq!(pool.n_free(), 2);
        assert_eq!(table.locate(0), (PageId(0), 0));
        assert_eq!(table.locate(PAGE_LEN + 3), (PageId(1), 3));

        let err = table.grow(9 * PAGE_LEN, &mut pool).unwrap_err();
        assert_eq!(err, Error::OutOfPages { needed: 7, free: 2, total: 4 });
        assert_eq!((table.len(), table.pages().len()), (2 * PAGE_LEN, 2));
        table.clear(&mut pool);
        assert_eq!((table.len(), pool.n_free()), (0, 4));
    }

    #[test]
    fn a_window_gives_pages_back() {
        let mut pool = PagePool::new(8);
        let mut table = BlockTable::default();
        table.grow(4 * PAGE_LEN, &mut pool).unwrap();
        table.release_before(2 * PAGE_LEN + 5, &mut pool);
        assert_eq!((table.first_page(), table.start(), pool.n_free()), (2, 2 * PAGE_LEN, 6));
        assert_eq!(table.locate(2 * PAGE_LEN).0, PageId(2));
        table.grow(4 * PAGE_LEN + 1, &mut pool).unwrap();
        assert_eq!(table.pages().len(), 3);
    }

    #[test]
    fn truncation_needs_what_the_window_sees() {
        let mut pool = PagePool::new(8);
        let mut table = BlockTable::default();
        table.grow(4 * PAGE_LEN, &mut pool).unwrap();
        table.release_before(PAGE_LEN, &mut pool);
        let window = Some(PAGE_LEN);
        assert!(!table.truncate(PAGE_LEN, window, &mut pool), "positions before are gone");
        assert!(table.truncate(2 * PAGE_LEN + 1, window, &mut pool));
        assert_eq!((table.len(), table.pages().len(), pool.n_free()), (2 * PAGE_LEN + 1, 2, 6));
        assert!(table.truncate(9 * PAGE_LEN, window, &mut pool), "nothing to forget");
        assert_eq!(table.len(), 2 * PAGE_LEN + 1);
    }

    #[test]
    #[should_panic(expected = "position 0 is outside 32..64")]
    fn a_released_position_is_gone() {
        let mut pool = PagePool::new(8);
        let mut table = BlockTable::default();
        table.grow(2 * PAGE_LEN, &mut pool).unwrap();
        table.release_before(PAGE_LEN, &mut pool);
        table.locate(0);
    }
}
