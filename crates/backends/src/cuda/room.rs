//! The memory that a plan takes on a device besides its weights: computed before it is loaded, and allocated when it is.

use super::experts::PairRoom;
use super::fused::{self, FusedSteps, InBf16};
use super::products::{Choices, Form, ProductRoom, form, linear_form};
use super::words::{Lists, Places};
use super::{kv_spec, recurrent, shortlists};
use crate::ExecutableOptions;
use crate::Phase;
use crate::gpu::weights::WeightLayout;
use realizar_kernels_cuda::{AttentionScratch, Driver, HalfType, RankRows};
use realizar_kvcache::KvLayout;
use realizar_model::graph::plan::{Plan, Step};
use realizar_model::graph::weights::Weights;
use realizar_model::graph::{Op, Reach};

/// Bytes of `n` numbers.
pub(super) fn f32_bytes(n: usize) -> usize {
    n.saturating_mul(size_of::<f32>())
}

/// The partial results of attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ScratchRoom {
    /// The maximum number of decode rows of a step.
    pub(super) max_rows: usize,
    /// The maximum of all layers.
    pub(super) n_heads: usize,
    /// The maximum of all layers.
    pub(super) head_dim: usize,
    /// Positions that a row sees at most.
    pub(super) max_kv_len: usize,
}

/// What a plan needs room for.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) places: Places,
    /// Numbers of the activations.
    pub(super) n_values: usize,
    /// Numbers of the output's rows.
    pub(super) n_outputs: usize,
    /// None where no layer attends.
    pub(super) scratch: Option<ScratchRoom>,
    /// What becomes of each step.
    pub(super) fused: FusedSteps,
    pub(super) products: ProductRoom,
    pub(super) pairs: PairRoom,
    /// Ranks, and values of each that are exchanged at once; `None` if there are no others.
    pub(super) exchange: Option<(usize, usize)>,
    /// Rows of logits that shortlists are made of in a step; none where the output has none.
    pub(super) list_rows: usize,
    /// Columns of the output.
    width: usize,
    kv_bytes: usize,
}

/// The maximum number of values of a plan's output, with hidden states that drafting continues from.
fn max_output(plan: &Plan) -> usize {
    let of = |drafts: bool| {
        let output = plan.output_of(drafts);
        let n = output.width.saturating_mul(plan.limits.of(output.rows));
        let hidden = plan.hidden_of(drafts).map_or(0, |place| place.width);
        n.saturating_add(hidden.saturating_mul(plan.limits.outputs))
    };
    if plan.draft.is_some() { of(false).max(of(true)) } else { of(false) }
}

/// The maximum number of heads of any layer's attention, and of their columns; none without one.
fn heads(plan: &Plan) -> Option<(usize, usize)> {
    let attentions = plan.steps.iter().filter_map(|step| match &step.op {
        Op::Attention(a) => Some((a.n_heads, a.head_dim)),
        _ => None,
    });
    attentions.reduce(|most, of| (most.0.max(of.0), most.1.max(of.1)))
}

/// The maximum number of values of a rank that a step exchanges; `None` if no step does.
fn exchanged(plan: &Plan) -> Option<usize> {
    let of_step = |step: &Step| match &step.op {
        Op::AllReduce { .. } | Op::AllGather => {
            let x = &step.inputs[0];
            Some(plan.limits.of(x.rows).saturating_mul(x.stride))
        }
        _ => None,
    };
    plan.steps.iter().filter_map(of_step).max()
}

impl Room {
    pub(super) fn new(
        plan: &Plan,
        weights: &Weights,
        layout: &WeightLayout,
        options: &ExecutableOptions,
        (n_ranks, choices): (usize, Choices),
    ) -> Self {
        let reaches = |step: &Step| matches!(&step.op, Op::Attention(a) if a.reach == Reach::OfRow);
        let components = |step: &Step| match &step.op {
            Op::RopeTable(angles) if angles.components.is_empty() => 1,
            Op::RopeTable(_) => 3,
            _ => 0,
        };
        let lists = Lists {
            states: plan.state_len > 0,
            reaches: plan.steps.iter().any(reaches),
            angles: plan.steps.iter().map(components).max().unwrap_or(0),
        };
        let n_pages: Vec<usize> = options.kv.iter().map(|(_, n_pages)| *n_pages).collect();
        let places = Places::new(plan.limits, options.max_seq_len, &n_pages, lists);
        let scratch = heads(plan).map(|(n_heads, head_dim)| ScratchRoom {
            max_rows: plan.limits.tokens,
            n_heads,
            head_dim,
            max_kv_len: options.max_seq_len,
        });
        let is_quantized = |ty| form(options.arithmetic, Phase::Decode, ty) == Form::Quantized;
        let steps = fused::find(plan, |idx| match &plan.steps[idx].op {
            Op::Linear { .. } => {
                fused::n_quantized(layout.linear(idx, weights).map(|(ty, ..)| is_quantized(ty)))
            }
            _ => 0,
        });
        let rounded = fused::find_rounded(plan, |idx| {
            let Op::Linear { .. } = &plan.steps[idx].op else { return None };
            let form = |ty| linear_form(options.arithmetic, choices.has_wgmma, Phase::Prefill, ty);
            let mut forms = layout.linear(idx, weights).map(|(ty, ..)| form(ty));
            let first = forms.next()?;
            let is_grouped = first == Form::Wgmma(HalfType::BF16);
            let is_bf16 = is_grouped || first == Form::Half(HalfType::BF16);
            let n = forms.try_fold(1, |n, form| (form == first).then_some(n + 1))?;
            is_bf16.then_some(InBf16 { is_grouped, n })
        });
        let fused = FusedSteps { steps, rounded };
        let states = recurrent::n_bytes(plan, options);
        let pool = |(layout, n_pages): &(KvLayout, usize)| {
            kv_spec(layout, *n_pages).n_bytes().saturating_mul(layout.spec().n_layers)
        };
        Self {
            places,
            n_values: plan.arena_len,
            n_outputs: max_output(plan),
            scratch,
            products: ProductRoom::new(plan, &fused, weights, options, choices),
            fused,
            pairs: PairRoom::new(plan),
            exchange: exchanged(plan).map(|n_values| (n_ranks, n_values)),
            list_rows: shortlists::n_rows(plan, options),
            width: plan.output.width,
            kv_bytes: options.kv.iter().map(pool).fold(states, usize::saturating_add),
        }
    }

    /// Bytes of keys, values and states.
    pub(super) fn kv_bytes(&self) -> usize {
        self.kv_bytes
    }

    /// Bytes on the device.
    pub(super) fn device_bytes(&self) -> usize {
        let of_scratch = |room: ScratchRoom| {
            let ScratchRoom { max_rows, n_heads, head_dim, max_kv_len } = room;
            AttentionScratch::<Driver>::bytes(max_rows, n_heads, head_dim, max_kv_len)
        };
        let scratch = self.scratch.map_or(0, of_scratch);
        [
            f32_bytes(self.places.n_words),
            f32_bytes(self.n_values),
            scratch,
            self.products.n_bytes(),
            self.pairs.n_bytes(),
            self.exchange.map_or(0, |(ranks, values)| RankRows::<Driver>::bytes(ranks, values)),
            shortlists::device_bytes(self.width, self.list_rows),
        ]
        .into_iter()
        .fold(0, usize::saturating_add)
    }

    /// Bytes on the host: the numbers of a step and the rows of the output are there.
    pub(super) fn host_bytes(&self) -> usize {
        let lists = shortlists::host_bytes(self.width, self.list_rows);
        f32_bytes(self.places.n_words)
            .saturating_add(f32_bytes(self.n_outputs))
            .saturating_add(lists)
    }
}
