//! Feeds tokens from shortlists to the next step without the host.

use super::{ListPlace, NONE, Shortlists, THREADS};
use crate::device::{Argument, Device};
use crate::kernels::Kernels;
use crate::{Error, List};
use realizar_types::{DrawOfBest, NextToken, ShareScale};

const SOURCE_WORDS: usize = 8;
/// Marks draws in the order of token ids, in the word with the offset of the list.
const BY_ID: u32 = 1 << 31;

impl<D: Device> Shortlists<D> {
    /// Words per row of a [source](Self::source).
    pub const SOURCE_WORDS: usize = SOURCE_WORDS;

    /// The source that makes [`feed`](Self::feed) take a row's token from the list of pushed row `idx`. A row that
    /// keeps its token has `u32::MAX` in the first word of its source.
    ///
    /// # Panics
    /// If there is no such row, or `next` requires shares or a draw that were not requested.
    pub fn source(&self, idx: usize, next: NextToken) -> [u32; SOURCE_WORDS] {
        let ListPlace { at, n_listed, n_best, has_shares, n_draws } = self.places[idx];
        let best = at + 1 + n_listed;
        let total = best + 2 * n_best;
        match next {
            NextToken::Best => [best as u32, NONE, NONE, 0, 0, 0, 0, 0],
            NextToken::Drawn => {
                assert!(has_shares && n_draws > 0, "a draw of the row was wanted");
                [total as u32 + 2, NONE, NONE, 0, 0, 0, 0, 0]
            }
            NextToken::OfBest(of) => {
                let DrawOfBest {
                    scale: ShareScale { factor, range },
                    top_p,
                    of_row,
                    min_p,
                    draw,
                    by_id,
                } = of;
                assert!(has_shares || !of_row, "shares of the row were wanted");
                let list = at as u32 | if by_id { BY_ID } else { 0 };
                let total = if of_row { total as u32 } else { NONE };
                let (range, top_p) = (range.cast_unsigned(), top_p.unwrap_or(NONE));
                [best as u32, list, total, factor, range, top_p, min_p, draw]
            }
        }
    }

    /// Queues a copy of tokens from the last queued lists to the tokens of the next step, of which the first `n_fed`
    /// rows are fed. The host reads them by [`fed`](Self::fed).
    ///
    /// The next step can thus be launched before the host has read the lists. The host compares its choice with the fed
    /// token and discards a row that began with another one. The device draws as the host does, except for the rounding
    /// of weights.
    ///
    /// # Errors
    /// Any error of the driver.
    ///
    /// # Panics
    /// If the lengths of `sources` and `tokens` do not match, they are on another device, or the rows exceed the
    /// limits.
    pub fn feed(
        &mut self,
        kernels: &Kernels<D>,
        stream: &D::Stream,
        sources: List<'_, D>, // [n_rows, SOURCE_WORDS], at 16 bytes
        tokens: List<'_, D>,  // [n_rows]
        n_fed: usize,
    ) -> Result<(), Error> {
        let n_rows = tokens.len();
        assert!((1..=Self::MAX_ROWS).contains(&n_rows), "{n_rows} rows");
        assert!(n_fed <= n_rows.min(self.limits.rows), "{n_fed} of {n_rows} rows");
        assert_eq!(sources.len(), Self::SOURCE_WORDS * n_rows, "a source for each token");
        sources.check(kernels, "the sources of tokens", sources.len());
        tokens.check(kernels, "tokens", n_rows);
        kernels.check("the lists", &self.lists, self.n_words + n_fed);
        self.n_fed = n_fed;
        let arguments = [
            Argument::Address(self.lists.address()),
            sources.address(),
            Argument::I32(self.n_words as i32),
            Argument::I32(self.n_logits as i32),
            tokens.address(),
        ];
        let grid = [n_rows as u32, 1, 1];
        // SAFETY: the arguments are those of `shortlist_feed` in order; both lists were checked. Sources are those of
        // `source`, offsets of words of the lists, or none after the first `n_fed`, for which there is room after the
        // lists. As `matvec` says, buffers outlive queued work.
        unsafe { kernels.launch(stream, &kernels.shortlist.feed, grid, [THREADS, 1], &arguments) }
    }

    /// The token that was fed to row `row` of the next step, after [`read`](Self::read).
    ///
    /// # Panics
    /// If the row was not fed.
    pub fn fed(&self, row: usize) -> u32 {
        assert!(row < self.n_fed, "row {row} of {}", self.n_fed);
        self.out[self.n_words + row]
    }
}
