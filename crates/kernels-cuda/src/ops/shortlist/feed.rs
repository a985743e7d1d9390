//! Tokens that go from shortlists to the next step without the host.

use super::{ListPlace, NONE, Shortlists, THREADS};
use crate::device::{Argument, Device};
use crate::kernels::Kernels;
use crate::{Error, List};

/// How the token that follows is found in the shortlist of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextToken {
    /// The best one.
    Best,
    /// The one at the place of the first draw.
    Drawn,
    /// One that is drawn of the best ones, as far as filters keep them.
    OfBest(DrawOfBest),
}

/// A draw of the best tokens by their shares, of which filters keep the first ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrawOfBest {
    /// The scale of shares, as in [`SharesOf`](super::SharesOf).
    pub factor: u32,
    /// Its range, as there.
    pub range: i32,
    /// Top-p: the fewest tokens are kept that reach this part of all shares, in units of 2^-32; all are without.
    pub top_p: Option<u32>,
    /// Whether that is a part of the shares of the whole row, which were wanted, or of the best tokens alone.
    pub of_row: bool,
    /// Min-p: tokens are kept whose shares reach this part of the best token's, in units of 2^-32.
    pub min_p: u32,
    /// The place among those that are kept, in units of 2^-32 of their shares.
    pub draw: u32,
    /// Whether places go over tokens in their order, or from the best one down.
    pub by_id: bool,
}

const SOURCE_WORDS: usize = 8;
/// Draws by order of tokens are marked in the word that says where their list is.
const BY_ID: u32 = 1 << 31;

impl<D: Device> Shortlists<D> {
    /// Words of a row's [source](Self::source).
    pub const SOURCE_WORDS: usize = SOURCE_WORDS;

    /// What [`feed`](Self::feed) has to know of a row whose token comes from the row that was pushed as number `idx`. A
    /// row that keeps the token that it has is `u32::MAX` in the first word.
    ///
    /// # Panics
    /// If there is no such row, or shares or a draw were not wanted of it that are needed.
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
                let DrawOfBest { factor, range, top_p, of_row, min_p, draw, by_id } = of;
                assert!(has_shares || !of_row, "shares of the row were wanted");
                let list = at as u32 | if by_id { BY_ID } else { 0 };
                let total = if of_row { total as u32 } else { NONE };
                let (range, top_p) = (range.cast_unsigned(), top_p.unwrap_or(NONE));
                [best as u32, list, total, factor, range, top_p, min_p, draw]
            }
        }
    }

    /// Queues the copy of tokens from the lists that were queued before to the tokens of the next step, whose first
    /// `n_fed` rows have some. The host finds them by [`fed`](Self::fed).
    ///
    /// The step can so be launched before the host has read the lists. What the host then chooses is compared with
    /// the token that was fed, and the row of a step that began with another token is discarded: the device's draw is
    /// the host's but for the rounding of its weights.
    ///
    /// # Errors
    /// What the driver reports.
    ///
    /// # Panics
    /// If the lists of numbers have different lengths or are on another device, or there are more rows than there is
    /// room for.
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
        // SAFETY: the arguments are those of `shortlist_feed` in order; both lists of numbers were checked. Sources are
        // what `source` gave, words of the lists, or none after the first `n_fed`, for which there is room after the
        // lists. As `matvec` says, buffers outlive queued work.
        unsafe { kernels.launch(stream, &kernels.shortlist.feed, grid, [THREADS, 1], &arguments) }
    }

    /// The token that row `row` of the next step was given, after [`read`](Self::read).
    ///
    /// # Panics
    /// If it was given none.
    pub fn fed(&self, row: usize) -> u32 {
        assert!(row < self.n_fed, "row {row} of {}", self.n_fed);
        self.out[self.n_words + row]
    }
}
