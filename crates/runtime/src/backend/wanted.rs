//! What a step gives back: for every row of output its logits, or a shortlist of them.
//!
//! A shortlist is what a token can be chosen from on the host, by the code that chooses from rows, with
//! the same result: the best tokens of a row with their logits, and the logits of tokens that are asked
//! for by themselves.

use super::Batch;
use crate::Error;
use std::ops::Range;

/// The shortlists that an executable can give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// The most rows of a step.
    pub max_rows: usize,
    /// The most of the best tokens of a row.
    pub max_best: usize,
    /// The most tokens of a row that are given by themselves.
    pub max_listed: usize,
}

/// A shortlist as it is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortlistOf {
    /// How many of the best tokens, at least one.
    pub n_best: usize,
    /// Tokens; what the row has behind them is of none.
    pub n_tokens: usize,
    /// Where the tokens that are given by themselves begin in [`Wants::listed`], and how many they are.
    listed: (usize, usize),
    /// Where the bits of the tokens that may be among the best begin in the masks, and how many words
    /// they are.
    mask: Option<(usize, usize)>,
}

/// What is wanted of an output row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// All its logits.
    Logits,
    /// A shortlist of them.
    Shortlist(ShortlistOf),
}

/// What is wanted of the output rows of a step.
#[derive(Debug, Default)]
pub struct Wants {
    rows: Vec<(Wanted, usize)>, // with its place among the rows of its kind, once it is settled
    listed: Vec<u32>,
    masks: Vec<u32>,
    n_shortlists: usize,
}

impl Wants {
    /// With room for `max_rows` rows.
    pub fn with_capacity(max_rows: usize) -> Self {
        Self { rows: Vec::with_capacity(max_rows), ..Self::default() }
    }

    /// All logits of `n_rows` rows.
    pub fn reset(&mut self, n_rows: usize) {
        self.rows.clear();
        self.rows.resize(n_rows, (Wanted::Logits, 0));
        self.listed.clear();
        self.masks.clear();
        self.n_shortlists = 0;
    }

    /// Output rows.
    pub fn n_rows(&self) -> usize {
        self.rows.len()
    }

    /// Rows of which a shortlist is wanted.
    pub fn n_shortlists(&self) -> usize {
        self.n_shortlists
    }

    /// Wants a shortlist of an output row of which logits were wanted: the best `n_best` of the first
    /// `n_tokens` tokens that are not listed and that `mask` allows, one bit for each, 32 to a word from
    /// the lowest on; and the logits of those that `list` appends, in ascending order and each once.
    pub fn shorten(
        &mut self,
        row: usize,
        (n_best, n_tokens): (usize, usize),
        mask: Option<&[u32]>,
        list: impl FnOnce(&mut Vec<u32>),
    ) {
        let listed_at = self.listed.len();
        list(&mut self.listed);
        let listed = (listed_at, self.listed.len() - listed_at);
        let mask = mask.map(|mask| {
            let at = self.masks.len();
            self.masks.extend_from_slice(mask);
            (at, mask.len())
        });
        self.rows[row].0 = Wanted::Shortlist(ShortlistOf { n_best, n_tokens, listed, mask });
        self.n_shortlists += 1;
    }

    /// Gives each row its place among the rows of its kind.
    pub(crate) fn settle(&mut self) {
        let (mut n_rows, mut n_lists) = (0, 0);
        for (wanted, place) in &mut self.rows {
            let n = if *wanted == Wanted::Logits { &mut n_rows } else { &mut n_lists };
            *place = *n;
            *n += 1;
        }
    }

    /// What is wanted of each row.
    pub fn rows(&self) -> impl Iterator<Item = Wanted> {
        self.rows.iter().map(|row| row.0)
    }

    /// The runs of neighbours among the rows of which all logits are wanted.
    pub fn whole_rows(&self) -> impl Iterator<Item = Range<usize>> {
        let is_whole = |row: usize| self.rows[row].0 == Wanted::Logits;
        let mut next = 0;
        std::iter::from_fn(move || {
            let start = (next..self.rows.len()).find(|&row| is_whole(row))?;
            next = (start..self.rows.len()).find(|&row| !is_whole(row)).unwrap_or(self.rows.len());
            Some(start..next)
        })
    }

    /// What is wanted of a row, and its place among the rows of which the like is wanted.
    pub(crate) fn row(&self, row: usize) -> (Wanted, usize) {
        self.rows[row]
    }

    /// The tokens of a shortlist that are given by themselves.
    pub fn listed(&self, of: &ShortlistOf) -> &[u32] {
        &self.listed[of.listed.0..][..of.listed.1]
    }

    /// The bits of the tokens that may be among the best of a shortlist; all may without.
    pub fn mask(&self, of: &ShortlistOf) -> Option<&[u32]> {
        of.mask.map(|(at, n)| &self.masks[at..][..n])
    }
}

/// A shortlist as a device has made it.
#[derive(Debug, Clone, Copy)]
pub struct Shortlist<'a> {
    /// The bits of the logits of the listed tokens, in their order.
    pub listed: &'a [u32],
    /// The best tokens and the bits of their logits, in no order: as many as are wanted, or all that may
    /// be among them and are above minus infinity. None where a logit is none to choose by.
    pub best: Option<&'a [[u32; 2]]>,
}

/// What collects the steps that an executable runs beside the host, and gives shortlists of logits.
///
/// Between [`Executable::launch`](super::Executable::launch) and [`Self::collect`] the host has its hands
/// free.
pub trait Beside {
    /// The shortlists that it gives.
    fn offer(&self) -> Offer;

    /// Waits for the step that was launched for `batch`, and for what is wanted of it, which no more
    /// than [`Self::offer`] says is.
    ///
    /// # Errors
    /// If the device fails.
    fn collect(&mut self, batch: &Batch, wants: &Wants) -> Result<(), Error>;

    /// Of the step that was collected, the rows of which logits were wanted: `[n, vocab_size]`.
    fn rows(&self) -> &[f32];

    /// Of the step that was collected, shortlist number `idx`.
    fn shortlist(&self, idx: usize) -> Shortlist<'_>;

    /// Of the step that was collected, the logits of an output row of which a shortlist was wanted.
    ///
    /// # Errors
    /// If the device fails.
    fn read_row(&mut self, wants: &Wants, row: usize) -> Result<&[f32], Error>;
}
