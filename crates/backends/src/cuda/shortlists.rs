//! Shortlists of the rows of logits that a step ends in.

use super::room::f32_bytes;
use super::words::SOURCE_WORDS;
use crate::{ExecutableOptions, RowOutput, SampleLimits, SampleRequests, TopKRequest};
use realizar_kernels_cuda::{
    Device, Driver, Error, Kernels, List, Rows, SharesOf, Shortlist, ShortlistLimits, ShortlistRow,
    ShortlistScratch, Shortlists,
};
use realizar_model::graph::RowDomain;
use realizar_model::graph::plan::Plan;
use realizar_text::sampling::logprobs::LogSoftmax;
use realizar_types::NextToken;
use std::sync::Arc;

/// The maximum number of rows of a step that shortlists are made of.
const MAX_ROWS: usize = 256;

/// Rows of a plan's output that shortlists can be made of in a step; none where they are not logits.
pub(super) fn n_rows(plan: &Plan, options: &ExecutableOptions) -> usize {
    let are_logits = options.logits && plan.output.rows == RowDomain::Outputs;
    let fits = plan.output.width <= Shortlists::<Driver>::MAX_LOGITS as usize;
    if are_logits && fits { plan.limits.outputs.min(MAX_ROWS) } else { 0 }
}

/// What the lists have that tokens are chosen from.
fn choice_limits(n_rows: usize) -> ShortlistLimits {
    let listed = Shortlists::<Driver>::MAX_LISTED as usize;
    let draws = Shortlists::<Driver>::MAX_DRAWS as usize;
    ShortlistLimits { rows: n_rows, listed, draws, masks: true }
}

/// What those have that log-probabilities are made of.
fn logprob_limits(n_rows: usize) -> ShortlistLimits {
    ShortlistLimits { rows: n_rows, listed: 0, draws: 0, masks: false }
}

/// Bytes on the device for shortlists of this many rows of `width` logits.
pub(super) fn device_bytes(width: usize, n_rows: usize) -> usize {
    if n_rows == 0 {
        return 0;
    }
    let lists = [choice_limits(n_rows), logprob_limits(n_rows)];
    let of_lists = lists.iter().map(|l| Shortlists::<Driver>::bytes(width as u32, l)).sum::<u64>();
    (of_lists + ShortlistScratch::<Driver>::bytes(width as u32, n_rows)) as usize
}

/// The same on the host, with a row.
pub(super) fn host_bytes(width: usize, n_rows: usize) -> usize {
    if n_rows == 0 {
        return 0;
    }
    let lists = [choice_limits(n_rows), logprob_limits(n_rows)];
    let bytes = lists.iter().map(|l| Shortlists::<Driver>::host_bytes(width as u32, l));
    bytes.sum::<u64>() as usize + f32_bytes(width)
}

/// Room for the shortlists of a step, and for a row that was made one of.
#[derive(Debug)]
pub(super) struct RowLists<D: Device> {
    lists: Shortlists<D>,
    /// Lists of the rows as they are, made before tokens that are given by themselves are taken out.
    logprobs: Shortlists<D>,
    scratch: ShortlistScratch<D>,
    max_rows: usize,
    pub(super) row: Vec<f32>, // [width]
}

impl<D: Device> RowLists<D> {
    pub(super) fn new(
        device: &Arc<D>,
        stream: &D::Stream,
        width: usize,
        max_rows: usize,
    ) -> Result<Self, Error> {
        let new = |limits| Shortlists::new(device, width as u32, limits);
        Ok(Self {
            lists: new(choice_limits(max_rows))?,
            logprobs: new(logprob_limits(max_rows))?,
            scratch: ShortlistScratch::new(device, stream, width as u32, max_rows)?,
            max_rows,
            row: vec![0.0; width],
        })
    }

    /// Bytes on the host.
    pub(super) fn host_bytes(&self) -> usize {
        host_bytes(self.row.len(), self.max_rows)
    }

    pub(super) fn sample_limits(&self) -> SampleLimits {
        SampleLimits {
            max_rows: self.max_rows,
            max_best: Shortlists::<D>::MAX_BEST as usize,
            max_listed: Shortlists::<D>::MAX_LISTED as usize,
            max_draws: Shortlists::<D>::MAX_DRAWS as usize,
        }
    }

    /// Queues the making of what is wanted of these rows; returns how many launches that takes.
    pub(super) fn queue(
        &mut self,
        kernels: &Kernels<D>,
        stream: &D::Stream,
        wants: &SampleRequests,
        logits: Rows<'_, D>, // [n_rows, width]
    ) -> Result<u64, Error> {
        self.lists.clear();
        self.logprobs.clear();
        let scale = LogSoftmax::share_scale();
        for (row, wanted) in wants.rows().enumerate() {
            let RowOutput::Shortlist(of) = wanted else { continue };
            let TopKRequest { n_best, n_tokens, shares, logprobs, .. } = of.contents;
            self.lists.push(&ShortlistRow {
                row: row as u32,
                n_best: n_best as u32,
                n_tokens: n_tokens as u32,
                listed: wants.listed(&of),
                mask: wants.mask(&of),
                shares: shares.map(|scale| SharesOf { scale, draws: wants.draws(&of) }),
            });
            if let Some(k) = logprobs {
                self.logprobs.push(&ShortlistRow {
                    row: row as u32,
                    n_best: k.max(1) as u32,
                    n_tokens: u32::MAX,
                    listed: &[],
                    mask: None,
                    shares: Some(SharesOf { scale, draws: &[] }),
                });
            }
        }
        let mut n_launches = 0;
        for lists in [&self.logprobs, &self.lists] {
            if !lists.is_empty() {
                let (n, with_shares) = (lists.len(), lists.has_shares());
                lists.upload(stream)?;
                lists.queue(kernels, stream, logits, &self.scratch, n, with_shares)?;
                n_launches += 1 + u64::from(with_shares);
            }
        }
        Ok(n_launches)
    }

    /// Where the lists that were queued have the token that a row continues with.
    pub(super) fn source(&self, idx: usize, next: NextToken) -> [u32; SOURCE_WORDS] {
        self.lists.source(idx, next)
    }

    /// Queues the copy of tokens from the lists that were queued to those of the next step.
    pub(super) fn feed(
        &mut self,
        kernels: &Kernels<D>,
        stream: &D::Stream,
        sources: List<'_, D>, // [n_rows, SOURCE_WORDS]
        tokens: List<'_, D>,  // [n_rows]
        n_fed: usize,
    ) -> Result<(), Error> {
        self.lists.feed(kernels, stream, sources, tokens, n_fed)
    }

    /// The token that a row of the next step was given.
    pub(super) fn fed(&self, row: usize) -> u32 {
        self.lists.fed(row)
    }

    /// Waits for the lists; returns how many bytes they have.
    pub(super) fn read(&mut self, stream: &D::Stream) -> Result<u64, Error> {
        self.lists.read(stream)?;
        self.logprobs.read(stream)?;
        Ok(self.lists.n_bytes() + self.logprobs.n_bytes())
    }

    pub(super) fn list(&self, idx: usize) -> Shortlist<'_> {
        self.lists.list(idx)
    }

    pub(super) fn logprobs(&self, idx: usize) -> Shortlist<'_> {
        self.logprobs.list(idx)
    }

    /// Gives the row that was read the logits that were taken out of it.
    pub(super) fn put_back(&mut self, wants: &SampleRequests, row: usize) {
        let (RowOutput::Shortlist(of), idx) = wants.row(row) else { return };
        let taken = wants.listed(&of).iter().zip(self.lists.list(idx).listed);
        taken.for_each(|(&id, &bits)| self.row[id as usize] = f32::from_bits(bits));
    }
}
