//! What is wanted of the rows of a step, and what was given.

use super::chunk::OutputRows;
use crate::Error;
use realizar_backends::{
    AsyncExecutable, RowOutput, SampleLimits, SampleRequests, Shortlist, ShortlistOf, TopKRequest,
};
use realizar_text::sampling::NextToken;

/// What is wanted of a step that was launched, by chunk.
pub(crate) struct RowRequests<'a> {
    pub(super) wants: &'a mut SampleRequests,
    pub(super) offer: SampleLimits,
    pub(super) first_rows: &'a [usize],
}

impl RowRequests<'_> {
    /// The shortlists that there can be.
    pub(crate) fn sample_limits(&self) -> SampleLimits {
        self.offer
    }

    /// Wants a shortlist of row `i` of the chunk's wanted rows, unless there are as many as there can be:
    /// as [`SampleRequests::shorten`].
    pub(crate) fn shorten(
        &mut self,
        (chunk, i): (usize, usize),
        few: TopKRequest,
        mask: Option<&[u32]>,
        list: impl FnOnce(&mut Vec<u32>),
    ) {
        if self.wants.n_shortlists() < self.offer.max_rows {
            self.wants.shorten(self.first_rows[chunk] + i, few, mask, list);
        }
    }

    /// Adds a draw to row `i` of the chunk, whose shortlist was requested last: as
    /// [`SampleRequests::draw`].
    pub(crate) fn draw(&mut self, (chunk, i): (usize, usize), place: u32) {
        self.wants.draw(self.first_rows[chunk] + i, place, self.offer.max_draws);
    }
}

/// A shortlist that was wanted of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GivenList<'a> {
    /// What was wanted.
    pub(crate) of: ShortlistOf,
    /// The tokens that it lists.
    pub(crate) ids: &'a [u32],
    /// The places of the draws.
    pub(crate) draws: &'a [u32],
    /// What was given.
    pub(crate) list: Shortlist<'a>,
    /// The same of the row as it is, for log-probabilities.
    pub(crate) logprobs: Option<Shortlist<'a>>,
}

impl GivenList<'_> {
    /// The token at the place of a draw; `None` if none was wanted there.
    pub(crate) fn drawn(&self, place: u32) -> Option<u32> {
        let at = self.draws.iter().position(|&draw| draw == place)?;
        Some(self.list.drawn.get(at)?[0])
    }

    /// The row's logit of a token, if the lists have it.
    pub(crate) fn logit(&self, id: u32) -> Option<f32> {
        let listed = self.ids.iter().zip(self.list.listed).map(|(&id, &bits)| [id, bits]);
        let best = [self.list.best, self.logprobs.and_then(|list| list.best)];
        let best = best.into_iter().flatten().flatten();
        let mut all = listed.chain(best.chain(self.list.drawn).copied());
        all.find(|token| token[0] == id).map(|token| f32::from_bits(token[1]))
    }
}

/// What a step has given.
pub(crate) struct Results<'a> {
    /// The rows that are whole.
    rows: OutputRows<'a>,
    /// What gives the others.
    wanted: Option<(&'a mut dyn AsyncExecutable, &'a SampleRequests)>,
    /// Where a further step was launched, the rows that give tokens to its rows, ascending. There are no rows then but
    /// the shortlists.
    ahead: Option<&'a [(usize, NextToken)]>,
}

impl<'a> Results<'a> {
    /// Whole rows.
    pub(super) fn of_rows(rows: OutputRows<'a>) -> Self {
        Self { rows, wanted: None, ahead: None }
    }

    /// What was wanted of each row.
    pub(super) fn of_wants(
        beside: &'a mut dyn AsyncExecutable,
        wants: &'a SampleRequests,
        (width, first_rows): (usize, &'a [usize]),
        ahead: Option<&'a [(usize, NextToken)]>,
    ) -> Self {
        let rows = OutputRows { values: &[], width, first_rows };
        Self { rows, wanted: Some((beside, wants)), ahead }
    }

    /// Whether a step was launched after this one, with the tokens that [`Self::fed`] tells.
    pub(crate) fn runs_ahead(&self) -> bool {
        self.ahead.is_some()
    }

    /// The token that the step after this one was given by row `i` of the chunk's wanted rows; `None` if it has no row
    /// of that.
    pub(crate) fn fed(&self, chunk: usize, i: usize) -> Option<u32> {
        let row = self.rows.first_rows[chunk] + i;
        let next = self.ahead?.binary_search_by_key(&row, |(row, _)| *row).ok()?;
        Some(self.wanted.as_ref()?.0.fed(next))
    }

    /// Row `i` of the chunk's wanted rows as a shortlist, if that was wanted.
    pub(crate) fn shortlist(&self, chunk: usize, i: usize) -> Option<GivenList<'_>> {
        let (beside, wants) = self.wanted.as_ref()?;
        match wants.row(self.rows.first_rows[chunk] + i) {
            (RowOutput::Logits, _) => None,
            (RowOutput::Shortlist(of), place) => Some(GivenList {
                of,
                ids: wants.listed(&of),
                draws: wants.draws(&of),
                list: beside.shortlist(place),
                logprobs: of.logprobs_place().map(|place| beside.logprobs(place)),
            }),
        }
    }

    /// The same row whole, whatever was wanted.
    ///
    /// # Errors
    /// If it has to be copied from a device that fails.
    ///
    /// # Panics
    /// If a step [runs ahead](Self::runs_ahead).
    pub(crate) fn row(&mut self, chunk: usize, i: usize) -> Result<&[f32], Error> {
        assert!(self.ahead.is_none(), "the logits are those of the next step");
        if let Some((beside, wants)) = &mut self.wanted {
            let row = self.rows.first_rows[chunk] + i;
            let width = self.rows.width;
            return match wants.row(row) {
                (RowOutput::Logits, place) => Ok(&beside.rows()[place * width..][..width]),
                (RowOutput::Shortlist(_), _) => Ok(beside.read_row(wants, row)?),
            };
        }
        Ok(self.rows.row(chunk, i))
    }
}
