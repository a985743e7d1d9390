//! The memory that a plan takes on a device beside its weights and its keys and values:
//! computed before it is loaded, and allocated when it is.

use super::bind;
use super::experts;
use super::kv_spec;
use super::shortlists;
use super::words::{GroupShape, Lists, Places};
use crate::gpu::weights::{WeightLayout, matrix_type};
use crate::{Arithmetic, ExecutableOptions};
use realizar_kernels_wgpu as kernels;
use realizar_kernels_wgpu::{AttentionScratch, ExpertPairs, Gpu, Kernel, QuantizedRows, Timer};
use realizar_kvcache::KvLayout;
use realizar_model::graph::plan::{Plan, Step};
use realizar_model::graph::weights::Weights;
use realizar_model::graph::{Op, Reach};

/// Bytes of `n` numbers.
pub(super) fn f32_bytes(n: usize) -> u64 {
    (n as u64).saturating_mul(size_of::<f32>() as u64)
}

/// The partial results of attention.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScratchRoom {
    pub(super) max_items: u32,
    /// The maximum of all layers.
    pub(super) n_heads: u32,
    /// The maximum of all layers.
    pub(super) head_dim: u32,
}

/// What a plan needs room for.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) places: Places,
    /// Numbers of the activations.
    pub(super) n_values: usize,
    /// Numbers of the output's rows.
    pub(super) n_outputs: usize,
    /// Bytes of the page that is copied.
    pub(super) page_bytes: u64,
    pub(super) scratch: ScratchRoom,
    /// Rows and columns of activations as 8-bit integers; none when no step wants them.
    pub(super) quantized: Option<(u32, u32)>,
    /// Pairs of rows and their experts, and experts; none when no step has any.
    pub(super) pairs: Option<(u32, u32)>,
    /// Rows of logits that shortlists are made of in a step; none where the output has none.
    pub(super) list_rows: usize,
    /// Columns of the output.
    width: usize,
    /// Kernels that are bound.
    pub(super) n_kernels: usize,
    /// Whether kernels are timed.
    profile: bool,
}

/// The widest input of a linear step.
fn max_linear_width(plan: &Plan) -> usize {
    let is_linear = |op: &Op| matches!(op, Op::Linear { .. } | Op::ExpertLinear(_));
    let linear = plan.steps.iter().filter(|step| is_linear(&step.op));
    linear.map(|step| step.inputs[0].width).max().unwrap_or(0)
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

/// Whether decode rows of some product take quantized activations.
fn any_quantized(plan: &Plan, weights: &Weights) -> bool {
    plan.steps.iter().any(|step| match &step.op {
        Op::Linear { parts, .. } => {
            parts.iter().any(|part| kernels::takes_quantized(matrix_type(weights, part.weight)))
        }
        Op::ExpertLinear(linear) => experts::takes_quantized(weights, linear),
        _ => false,
    })
}

/// The maximum number of heads of any layer's attention, and of their columns.
fn heads(plan: &Plan) -> (usize, usize) {
    let attentions = plan.steps.iter().filter_map(|step| match &step.op {
        Op::Attention(a) => Some((a.n_heads, a.head_dim)),
        _ => None,
    });
    attentions.fold((1, 1), |most, of| (most.0.max(of.0), most.1.max(of.1)))
}

impl Room {
    /// The room for `plan`, with up to `attention_bytes` for the partial results of
    /// attention, unless a single row may need more.
    pub(super) fn new(
        gpu: &Gpu,
        plan: &Plan,
        weights: (&Weights, &WeightLayout),
        options: &ExecutableOptions,
        attention_bytes: u64,
    ) -> Self {
        let caps = gpu.caps();
        let (n_heads, head_dim) = heads(plan);
        let (n_heads, head_dim) = (n_heads as u32, head_dim as u32);
        let budget = attention_bytes.min(caps.max_binding_bytes).min(caps.max_buffer_bytes);
        let wave_items = budget / AttentionScratch::bytes(1, n_heads, head_dim);
        let wave_items = wave_items.min(u64::from(caps.max_workgroups)) as usize;
        let shape = |(layout, n_pages): &(KvLayout, usize)| GroupShape {
            window: layout.spec().window,
            chunked: layout.spec().chunked,
            n_pages: *n_pages,
        };
        let shapes: Vec<GroupShape> = options.kv.iter().map(shape).collect();
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
        let places = Places::new(plan.limits, options.max_seq_len, &shapes, wave_items, lists);
        // Nothing would hold the scratch memory of a part without attention.
        let attends = plan.steps.iter().any(|step| matches!(step.op, Op::Attention(_)));
        let items = places.groups.iter().map(|group| group.wave_items);
        let max_items = items.max().filter(|_| attends).unwrap_or(0);
        let of_page = |(layout, n_pages): &(KvLayout, usize)| match layout.spec().n_layers {
            0 => 0,
            _ => kv_spec(layout, *n_pages).page_bytes(),
        };
        let quantized = (options.arithmetic == Arithmetic::Auto && any_quantized(plan, weights.0))
            .then(|| (plan.limits.tokens as u32, max_linear_width(plan) as u32));
        let n_kernels = bind::n_kernels(gpu, plan, weights, options.arithmetic);
        Self {
            places,
            n_values: plan.arena_len,
            n_outputs: max_output(plan),
            page_bytes: options.kv.iter().map(of_page).max().unwrap_or(0).max(4),
            scratch: ScratchRoom { max_items: max_items as u32, n_heads, head_dim },
            quantized,
            pairs: experts::most_pairs(plan),
            list_rows: shortlists::n_rows(plan, options),
            width: plan.output.width,
            n_kernels,
            profile: options.profile,
        }
    }

    /// Bytes on the device.
    pub(super) fn device_bytes(&self, gpu: &Gpu) -> u64 {
        let ScratchRoom { max_items, n_heads, head_dim } = self.scratch;
        let quantized = |(rows, cols)| QuantizedRows::bytes(rows, cols);
        [
            f32_bytes(self.places.n_words),
            f32_bytes(self.n_values),
            f32_bytes(self.n_outputs),
            self.page_bytes,
            AttentionScratch::bytes(max_items, n_heads, head_dim),
            self.quantized.map_or(0, quantized),
            self.pairs.map_or(0, |(n_pairs, n_experts)| ExpertPairs::bytes(n_pairs, n_experts)),
            self.n_kernels as u64 * Kernel::N_BYTES,
            shortlists::device_bytes(self.width, self.list_rows),
            if self.profile { Timer::bytes(gpu, self.n_kernels) } else { 0 },
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }

    /// Bytes on the host: the words of a step and the rows of the output are there too.
    pub(super) fn host_bytes(&self) -> u64 {
        let lists = shortlists::host_bytes(self.width, self.list_rows);
        let rows = f32_bytes(self.n_outputs).saturating_add(lists);
        f32_bytes(self.places.n_words).saturating_add(rows)
    }
}
