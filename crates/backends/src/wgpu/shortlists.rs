//! Shortlists of the rows of logits that a step ends in.

use super::room::f32_bytes;
use crate::{ExecutableOptions, RowOutput, SampleLimits, SampleRequests, TopKRequest};
use realizar_kernels_wgpu as kernels;
use realizar_kernels_wgpu::{
    Buffer, Gpu, Kernel, Recorder, SharesOf, Shortlist, ShortlistLimits, ShortlistRow,
    ShortlistScratch, Shortlists, View,
};
use realizar_model::graph::RowDomain;
use realizar_model::graph::plan::{Place, Plan};
use realizar_text::sampling::logprobs::LogSoftmax;

/// The maximum number of rows of a step that shortlists are made of.
const MAX_ROWS: usize = 256;

/// Rows of a plan's output that shortlists can be made of in a step; none where they are not logits.
pub(super) fn n_rows(plan: &Plan, options: &ExecutableOptions) -> usize {
    let are_logits = options.logits && plan.output.rows == RowDomain::Outputs;
    let fits = plan.output.width <= Shortlists::MAX_LOGITS as usize;
    if are_logits && fits { plan.limits.outputs.min(MAX_ROWS) } else { 0 }
}

/// What the lists have that tokens are chosen from.
fn choice_limits(n_rows: usize) -> ShortlistLimits {
    let (listed, draws) = (Shortlists::MAX_LISTED as usize, Shortlists::MAX_DRAWS as usize);
    ShortlistLimits { rows: n_rows, listed, draws, masks: true }
}

/// What those have that log-probabilities are made of.
fn logprob_limits(n_rows: usize) -> ShortlistLimits {
    ShortlistLimits { rows: n_rows, listed: 0, draws: 0, masks: false }
}

/// Bytes on the device for shortlists of this many rows of `width` logits.
pub(super) fn device_bytes(width: usize, n_rows: usize) -> u64 {
    match n_rows {
        0 => 0,
        n => {
            let width = width as u32;
            Shortlists::bytes(width, &choice_limits(n))
                + Shortlists::bytes(width, &logprob_limits(n))
                + ShortlistScratch::bytes(width, n)
                + 2 * Shortlists::N_KERNELS as u64 * Kernel::N_BYTES
        }
    }
}

/// The same on the host, with a row.
pub(super) fn host_bytes(width: usize, n_rows: usize) -> u64 {
    match n_rows {
        0 => 0,
        n => {
            Shortlists::host_bytes(width as u32, &choice_limits(n))
                + Shortlists::host_bytes(width as u32, &logprob_limits(n))
                + f32_bytes(width)
        }
    }
}

/// Room for the shortlists of a step, and for a row that was made one of.
#[derive(Debug)]
pub(super) struct RowLists {
    lists: Shortlists,
    /// Lists of the rows as they are, made before tokens that are given by themselves are taken out.
    logprobs: Shortlists,
    max_rows: usize,
    pub(super) row: Vec<f32>, // [width]
}

impl RowLists {
    pub(super) fn new(
        gpu: &Gpu,
        values: &Buffer,
        logits: &Place,
        max_rows: usize,
    ) -> Result<Self, kernels::Error> {
        let Place { start, stride, width, .. } = *logits;
        let view = View { start: start as u32, stride: stride as u32, width: width as u32 };
        let scratch = ShortlistScratch::new(gpu, width as u32, max_rows)?;
        let new = |limits| Shortlists::new(gpu, values, view, &scratch, limits);
        Ok(Self {
            lists: new(choice_limits(max_rows))?,
            logprobs: new(logprob_limits(max_rows))?,
            max_rows,
            row: vec![0.0; width],
        })
    }

    /// Bytes on the host.
    pub(super) fn host_bytes(&self) -> u64 {
        host_bytes(self.row.len(), self.max_rows)
    }

    pub(super) fn sample_limits(&self) -> SampleLimits {
        SampleLimits {
            max_rows: self.max_rows,
            max_best: Shortlists::MAX_BEST as usize,
            max_listed: Shortlists::MAX_LISTED as usize,
            max_draws: Shortlists::MAX_DRAWS as usize,
        }
    }

    /// Records the computation of what is wanted; calls `each` for every kernel.
    pub(super) fn record(
        &mut self,
        gpu: &Gpu,
        recorder: &mut Recorder<'_>,
        wants: &SampleRequests,
        mut each: impl FnMut(),
    ) -> Result<(), kernels::Error> {
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
        self.logprobs.record(gpu, recorder, |_| each())?;
        self.lists.record(gpu, recorder, |_| each())
    }

    /// Waits for the lists; returns how many bytes they have.
    pub(super) fn read(&mut self, gpu: &Gpu) -> Result<u64, kernels::Error> {
        self.lists.read(gpu)?;
        self.logprobs.read(gpu)?;
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
