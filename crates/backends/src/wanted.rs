//! What a step returns: for every row of output its logits, or a shortlist of them.
//!
//! A shortlist is what a token can be chosen from on the host, by the code that chooses from rows, with
//! the same result: the best tokens of a row with their logits, and the logits of tokens that are asked
//! for by themselves.

use super::Batch;
use crate::Error;
use realizar_types::{NextToken, ShareScale, Shortlist};
use std::ops::Range;

/// The shortlists that an executable can give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// The maximum number of rows of a step.
    pub max_rows: usize,
    /// The maximum number of best tokens per row.
    pub max_best: usize,
    /// The maximum number of tokens of a row that are given by themselves.
    pub max_listed: usize,
    /// The maximum number of draws per row.
    pub max_draws: usize,
}

/// What is wanted of a row in few numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Few {
    /// How many of the best tokens, at least one.
    pub n_best: usize,
    /// Tokens; what the row has after them is of none.
    pub n_tokens: usize,
    /// The scale of the shares that are wanted of all tokens that may be among the best, if they are.
    pub shares: Option<ShareScale>,
    /// With shares, a place among these tokens, in units of 2^-32, whose token is wanted.
    pub draw: Option<u32>,
    /// How many of the best tokens of the whole row as it is are wanted, and its shares by the scale of
    /// log-probabilities; `None` if these are not.
    pub logprobs: Option<usize>,
}

impl Few {
    /// The best of `n_tokens` tokens.
    pub fn best(n_tokens: usize) -> Self {
        Self { n_best: 1, n_tokens, shares: None, draw: None, logprobs: None }
    }
}

/// A shortlist as it is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortlistOf {
    /// What is wanted, but for further draws.
    pub few: Few,
    /// Where the draws begin in [`Wants::draws`], and how many they are.
    draws: (usize, usize),
    /// The place among the rows of which log-probabilities are wanted, once it is settled.
    logprobs: usize,
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
    draws: Vec<u32>,
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
        self.draws.clear();
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

    /// Wants a shortlist of an output row of which logits were wanted: what `few` says of the first
    /// tokens that are not listed and that `mask` allows, one bit for each, 32 to a word from
    /// the lowest on; and the logits of those that `list` appends, in ascending order and each once.
    pub fn shorten(
        &mut self,
        row: usize,
        few: Few,
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
        let draws = (self.draws.len(), usize::from(few.draw.is_some()));
        self.draws.extend(few.draw);
        self.rows[row].0 = Wanted::Shortlist(ShortlistOf { few, draws, logprobs: 0, listed, mask });
        self.n_shortlists += 1;
    }

    /// Wants another draw of the row of which a shortlist was wanted last, unless it has `most`.
    pub fn draw(&mut self, row: usize, place: u32, most: usize) {
        if let Wanted::Shortlist(of) = &mut self.rows[row].0
            && of.few.draw.is_some()
            && of.draws.1 < most
        {
            assert_eq!(of.draws.0 + of.draws.1, self.draws.len(), "draws of the last shortlist");
            self.draws.push(place);
            of.draws.1 += 1;
        }
    }

    /// Gives each row its place among the rows of its kind.
    pub fn settle(&mut self) {
        let (mut n_rows, mut n_lists, mut n_logprobs) = (0, 0, 0);
        for (wanted, place) in &mut self.rows {
            let n = match wanted {
                Wanted::Logits => &mut n_rows,
                Wanted::Shortlist(of) => {
                    of.logprobs = n_logprobs;
                    n_logprobs += usize::from(of.few.logprobs.is_some());
                    &mut n_lists
                }
            };
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
    pub fn row(&self, row: usize) -> (Wanted, usize) {
        self.rows[row]
    }

    /// The tokens of a shortlist that are given by themselves.
    pub fn listed(&self, of: &ShortlistOf) -> &[u32] {
        &self.listed[of.listed.0..][..of.listed.1]
    }

    /// The places of the draws of a shortlist.
    pub fn draws(&self, of: &ShortlistOf) -> &[u32] {
        &self.draws[of.draws.0..][..of.draws.1]
    }

    /// The bits of the tokens that may be among the best of a shortlist; all may without.
    pub fn mask(&self, of: &ShortlistOf) -> Option<&[u32]> {
        of.mask.map(|(at, n)| &self.masks[at..][..n])
    }
}

impl ShortlistOf {
    /// Of the rows of which log-probabilities are wanted, the number of this one; `None` if they are not.
    pub fn logprobs_place(&self) -> Option<usize> {
        self.few.logprobs.map(|_| self.logprobs)
    }
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

    /// Whether a step can be launched after one that is not collected yet: see [`Self::launch_next`].
    fn runs_ahead(&self) -> bool {
        false
    }

    /// Makes the shortlists of the step that was launched for `batch`, and launches a step of decode rows after it.
    /// Row `i` of `next` runs with a token that the device takes from the shortlist of the output row of `sources[i]`, as
    /// that says. [`Self::collect`] of the first step then waits for that step alone, and its logits are gone.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// If [`Self::runs_ahead`] is false, or whole rows are wanted of the first step.
    fn launch_next(
        &mut self,
        _batch: &Batch,
        _wants: &Wants,
        _next: &Batch,
        _sources: &[(usize, NextToken)],
    ) -> Result<(), Error> {
        panic!("steps are launched one at a time");
    }

    /// Of the step after the one that was collected, the token that row `row` was given.
    ///
    /// # Panics
    /// If there is no such step.
    fn fed(&self, row: usize) -> u32 {
        panic!("no step was launched ahead with row {row}");
    }

    /// Of the step that was collected, the rows of which logits were wanted: `[n, vocab_size]`.
    fn rows(&self) -> &[f32];

    /// Of the step that was collected, shortlist number `idx`.
    fn shortlist(&self, idx: usize) -> Shortlist<'_>;

    /// Of the step that was collected, the best tokens and the shares of the row number `idx` of which
    /// log-probabilities were wanted.
    fn logprobs(&self, idx: usize) -> Shortlist<'_>;

    /// Of the step that was collected, the logits of an output row of which a shortlist was wanted.
    ///
    /// # Errors
    /// If the device fails.
    fn read_row(&mut self, wants: &Wants, row: usize) -> Result<&[f32], Error>;
}
