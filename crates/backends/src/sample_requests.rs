//! Requests for the output of a step: for each output row all logits, or a shortlist of them.
//!
//! The host samples from a shortlist, by the code that samples from whole rows and with the same result. A shortlist has
//! the best tokens of a row, and tokens that were requested by id.

use super::Batch;
use crate::Error;
use realizar_types::{NextToken, ShareScale, Shortlist};
use std::ops::Range;

/// The largest shortlists of an executable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleLimits {
    /// The maximum number of rows of a step.
    pub max_rows: usize,
    /// The maximum number of best tokens per row.
    pub max_best: usize,
    /// The maximum number of tokens of a row that are requested by id.
    pub max_listed: usize,
    /// The maximum number of draws per row.
    pub max_draws: usize,
}

/// The contents of a shortlist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopKRequest {
    /// The number of best tokens, at least one.
    pub n_best: usize,
    /// The vocabulary size; logits after it are padding.
    pub n_tokens: usize,
    /// The scale of shares, if the sum over all tokens that the mask allows is requested.
    pub shares: Option<ShareScale>,
    /// With shares, a draw: a position in their cumulative sum, in units of 2^-32.
    pub draw: Option<u32>,
    /// For log-probabilities, the number of best tokens of the unmasked row, with the sum of its shares at scale 1.
    pub logprobs: Option<usize>,
}

impl TopKRequest {
    /// Requests the best of `n_tokens` tokens.
    pub fn best(n_tokens: usize) -> Self {
        Self { n_best: 1, n_tokens, shares: None, draw: None, logprobs: None }
    }
}

/// A requested shortlist; its lists are in [`SampleRequests`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortlistOf {
    /// Its contents, except for draws after the first.
    pub contents: TopKRequest,
    /// The start of the draws in [`SampleRequests::draws`], and their number.
    draws: (usize, usize),
    /// The index among the rows whose log-probabilities are requested, set by `settle`.
    logprobs: usize,
    /// The start of the tokens requested by id in [`SampleRequests::listed`], and their number.
    listed: (usize, usize),
    /// The start of the mask in the masks, and its number of words.
    mask: Option<(usize, usize)>,
}

/// The requested output of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOutput {
    /// All logits.
    Logits,
    /// A shortlist.
    Shortlist(ShortlistOf),
}

/// The requested outputs of a step, a [`RowOutput`] per output row.
#[derive(Debug, Default)]
pub struct SampleRequests {
    rows: Vec<(RowOutput, usize)>, // with its index among the rows of its kind, set by `settle`
    listed: Vec<u32>,
    masks: Vec<u32>,
    draws: Vec<u32>,
    n_shortlists: usize,
}

impl SampleRequests {
    /// Reserves memory for `max_rows` rows.
    pub fn with_capacity(max_rows: usize) -> Self {
        Self { rows: Vec::with_capacity(max_rows), ..Self::default() }
    }

    /// Requests all logits of `n_rows` rows.
    pub fn reset(&mut self, n_rows: usize) {
        self.rows.clear();
        self.rows.resize(n_rows, (RowOutput::Logits, 0));
        self.listed.clear();
        self.masks.clear();
        self.draws.clear();
        self.n_shortlists = 0;
    }

    /// The number of output rows.
    pub fn n_rows(&self) -> usize {
        self.rows.len()
    }

    /// The number of requested shortlists.
    pub fn n_shortlists(&self) -> usize {
        self.n_shortlists
    }

    /// Requests a shortlist in place of a row's logits. The best tokens are those that `mask` allows, one bit for each,
    /// 32 to a word from the lowest bit on, and that are not listed. `list` appends the tokens requested by id, in
    /// ascending order and each once.
    pub fn shorten(
        &mut self,
        row: usize,
        contents: TopKRequest,
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
        let draws = (self.draws.len(), usize::from(contents.draw.is_some()));
        self.draws.extend(contents.draw);
        self.rows[row].0 =
            RowOutput::Shortlist(ShortlistOf { contents, draws, logprobs: 0, listed, mask });
        self.n_shortlists += 1;
    }

    /// Adds a draw to the shortlist that was requested last, unless it has `most` draws.
    pub fn draw(&mut self, row: usize, place: u32, most: usize) {
        if let RowOutput::Shortlist(of) = &mut self.rows[row].0
            && of.contents.draw.is_some()
            && of.draws.1 < most
        {
            assert_eq!(of.draws.0 + of.draws.1, self.draws.len(), "draws of the last shortlist");
            self.draws.push(place);
            of.draws.1 += 1;
        }
    }

    /// Numbers the rows of each kind, after the last request of a step.
    pub fn settle(&mut self) {
        let (mut n_rows, mut n_lists, mut n_logprobs) = (0, 0, 0);
        for (wanted, place) in &mut self.rows {
            let n = match wanted {
                RowOutput::Logits => &mut n_rows,
                RowOutput::Shortlist(of) => {
                    of.logprobs = n_logprobs;
                    n_logprobs += usize::from(of.contents.logprobs.is_some());
                    &mut n_lists
                }
            };
            *place = *n;
            *n += 1;
        }
    }

    /// The requested output of each row.
    pub fn rows(&self) -> impl Iterator<Item = RowOutput> {
        self.rows.iter().map(|row| row.0)
    }

    /// The runs of adjacent rows whose logits are requested.
    pub fn whole_rows(&self) -> impl Iterator<Item = Range<usize>> {
        let is_whole = |row: usize| self.rows[row].0 == RowOutput::Logits;
        let mut next = 0;
        std::iter::from_fn(move || {
            let start = (next..self.rows.len()).find(|&row| is_whole(row))?;
            next = (start..self.rows.len()).find(|&row| !is_whole(row)).unwrap_or(self.rows.len());
            Some(start..next)
        })
    }

    /// The requested output of a row, and its index among the rows of that kind.
    pub fn row(&self, row: usize) -> (RowOutput, usize) {
        self.rows[row]
    }

    /// The tokens of a shortlist that are requested by id.
    pub fn listed(&self, of: &ShortlistOf) -> &[u32] {
        &self.listed[of.listed.0..][..of.listed.1]
    }

    /// The draws of a shortlist.
    pub fn draws(&self, of: &ShortlistOf) -> &[u32] {
        &self.draws[of.draws.0..][..of.draws.1]
    }

    /// The mask of a shortlist; without one, all tokens are allowed.
    pub fn mask(&self, of: &ShortlistOf) -> Option<&[u32]> {
        of.mask.map(|(at, n)| &self.masks[at..][..n])
    }
}

impl ShortlistOf {
    /// The index among the rows whose log-probabilities are requested; `None` if this one's are not.
    pub fn logprobs_place(&self) -> Option<usize> {
        self.contents.logprobs.map(|_| self.logprobs)
    }
}

/// An executable whose steps run asynchronously, and which selects shortlists.
///
/// The host is free between [`Executable::launch`](super::Executable::launch) and [`Self::collect`].
pub trait AsyncExecutable {
    /// The largest shortlists of a step.
    fn sample_limits(&self) -> SampleLimits;

    /// Waits for the launched step of `batch` and for its requested outputs, which are within
    /// [`Self::sample_limits`].
    ///
    /// # Errors
    /// If the device fails.
    fn collect(&mut self, batch: &Batch, wants: &SampleRequests) -> Result<(), Error>;

    /// Whether [`Self::launch_next`] can launch a step before the previous one is collected.
    fn runs_ahead(&self) -> bool {
        false
    }

    /// Selects the shortlists of the launched step of `batch`, and launches a step of decode rows after it. The device
    /// takes the token of row `i` of `next` from the shortlist of output row `sources[i].0` by the rule `sources[i].1`.
    /// [`Self::collect`] then waits for the first step alone, whose logits are overwritten.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// If [`Self::runs_ahead`] is false, or logits of the first step are requested.
    fn launch_next(
        &mut self,
        _batch: &Batch,
        _wants: &SampleRequests,
        _next: &Batch,
        _sources: &[(usize, NextToken)],
    ) -> Result<(), Error> {
        panic!("steps are launched one at a time");
    }

    /// The token that the device took for row `row` of the step after the collected one.
    ///
    /// # Panics
    /// If no such step was launched.
    fn fed(&self, row: usize) -> u32 {
        panic!("no step was launched ahead with row {row}");
    }

    /// The requested rows of logits of the collected step, `[n, vocab_size]`.
    fn rows(&self) -> &[f32];

    /// Shortlist number `idx` of the collected step.
    fn shortlist(&self, idx: usize) -> Shortlist<'_>;

    /// The best tokens and the sum of shares of row number `idx` among those whose log-probabilities were requested.
    fn logprobs(&self, idx: usize) -> Shortlist<'_>;

    /// The logits of an output row of the collected step whose shortlist was requested.
    ///
    /// # Errors
    /// If the device fails.
    fn read_row(&mut self, wants: &SampleRequests, row: usize) -> Result<&[f32], Error>;
}
