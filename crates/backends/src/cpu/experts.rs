//! Layers of which a row uses a few experts: the choice, the products, and their sum.
//!
//! Products have the arithmetic that linear steps have, by the phase of each row. Rows are sorted by
//! expert in memory that is sized at load.

use super::memory::Arena;
use super::names;
use super::packed::PackedWeights;
use super::phases::{RoleRows, packed_arithmetics};
use crate::Arithmetic;
use realizar_kernels_cpu as kernels;
use realizar_kernels_cpu::{
    Bf16Rows, Bf16Scratch, ExpertInput, ExpertParts, ExpertRows, ExpertScratch, MatrixRef,
    PackedArithmetic, PackedScratch, PanelScratch, QuantizedRows, Rows, RowsMut, Team, Tier,
    WeightsRef,
};
use realizar_model::graph::RowDomain;
use realizar_model::graph::plan::{Plan, Step};
use realizar_model::graph::weights::{WeightData, Weights};
use realizar_model::graph::{ExpertLinear, ExpertPart, Op, Prologue, Route};

/// The maximum number of parts that experts have; merging more would gain nothing.
const MAX_PARTS: usize = 4;

/// The products of a plan with experts.
pub(super) fn expert_linears(plan: &Plan) -> impl Iterator<Item = &ExpertLinear> {
    plan.steps.iter().filter_map(|step| match &step.op {
        Op::ExpertLinear(linear) => Some(linear),
        _ => None,
    })
}

/// By which kernel rows meet the matrices of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Packed, with quantized activations.
    Packed,
    /// Floats of the file, read once for a few rows.
    Rows,
    /// Widened to floats for all rows of an expert.
    Widened,
    /// On tiles of BF16.
    Tiles,
}

/// Of a part with this weight, the ways of decode rows and of prefill rows.
fn ways(weight: &WeightData, arithmetic: Arithmetic, tier: Tier) -> [Way; 2] {
    let (ty, rows, cols) = weight.matrix_shape().expect("the weight of experts is matrices");
    let [_, of_prompts] = packed_arithmetics(arithmetic, tier, RowDomain::Tokens);
    let on_tiles = of_prompts == PackedArithmetic::Bf16;
    let is_packed = kernels::packed_bytes(ty, rows, cols).is_some();
    match arithmetic {
        Arithmetic::F32 => [Way::Widened; 2],
        Arithmetic::Auto if is_packed => {
            [Way::Packed, if on_tiles { Way::Tiles } else { Way::Packed }]
        }
        Arithmetic::Auto if kernels::supports_rows(ty) => {
            [Way::Rows, if on_tiles { Way::Tiles } else { Way::Widened }]
        }
        Arithmetic::Auto => [Way::Widened; 2],
    }
}

/// The sizes of what the products work in.
#[derive(Debug, Default)]
struct Sizes {
    max_rows: usize,
    max_chosen: usize,
    max_experts: usize,
    max_in: usize,
    /// Pairs of a row and an expert.
    max_pairs: usize,
    quantizes: bool,
    /// Whether pairs are copied as floats.
    gathers: bool,
    on_tiles: bool,
}

impl Sizes {
    fn of(plan: &Plan, weights: &Weights, arithmetic: Arithmetic, tier: Tier) -> Self {
        let mut sizes = Self::default();
        for linear in expert_linears(plan) {
            sizes.max_rows = plan.limits.tokens.max(plan.limits.outputs);
            sizes.max_chosen = sizes.max_chosen.max(linear.n_chosen);
            sizes.max_experts = sizes.max_experts.max(linear.n_experts);
            sizes.max_in = sizes.max_in.max(linear.n_in);
            for part in &linear.parts {
                for way in ways(weights.get(part.weight), arithmetic, tier) {
                    sizes.quantizes |= way == Way::Packed;
                    sizes.gathers |= way != Way::Packed;
                    sizes.on_tiles |= way == Way::Tiles;
                }
            }
        }
        sizes.max_pairs = sizes.max_rows.saturating_mul(sizes.max_chosen);
        sizes
    }

    fn quantized_rows(&self) -> usize {
        if self.quantizes { self.max_pairs } else { 0 }
    }

    fn floats(&self) -> usize {
        if self.gathers { self.max_pairs.saturating_mul(self.max_in) } else { 0 }
    }

    fn bf16_rows(&self) -> usize {
        match self.on_tiles {
            true => ExpertRows::max_bf16_rows(self.max_pairs, self.max_experts),
            false => 0,
        }
    }
}

/// Bytes that the products work in, beside the arena; without the buffers of single threads.
pub(super) fn scratch_bytes(
    plan: &Plan,
    weights: &Weights,
    arithmetic: Arithmetic,
    tier: Tier,
) -> usize {
    let sizes = Sizes::of(plan, weights, arithmetic, tier);
    if sizes.max_pairs == 0 {
        return 0;
    }
    let quantized = QuantizedRows::bytes_for(sizes.quantized_rows(), sizes.max_in);
    let bf16 = Bf16Rows::bytes_for(sizes.bf16_rows(), sizes.max_in);
    let floats = sizes.floats().saturating_mul(size_of::<f32>());
    quantized.saturating_add(bf16).saturating_add(floats)
}

/// Memory that all products with experts work in, sized for the largest.
#[derive(Debug)]
pub(super) struct ExpertMemory {
    rows: ExpertRows,
    floats: Vec<f32>, // [max_pairs * max_in]
    quantized: QuantizedRows,
    packed: PackedScratch,
    panels: PanelScratch,
    sums: ExpertScratch,
    /// Of a tier that multiplies prefill rows in BF16.
    bf16: Option<(Bf16Rows, Bf16Scratch)>,
}

impl ExpertMemory {
    /// `None` when there is too little memory.
    pub(super) fn new(
        plan: &Plan,
        weights: &Weights,
        arithmetic: Arithmetic,
        tier: Tier,
        team: &Team,
    ) -> Option<Self> {
        let sizes = Sizes::of(plan, weights, arithmetic, tier);
        let Sizes { max_rows, max_chosen, max_experts, max_in, .. } = sizes;
        let bf16 = if sizes.on_tiles {
            let rows = Bf16Rows::with_capacity(sizes.bf16_rows(), max_in)?;
            Some((rows, Bf16Scratch::new(team)?))
        } else {
            None
        };
        Some(Self {
            rows: ExpertRows::with_capacity(max_rows, max_chosen, max_experts),
            floats: vec![0.0; sizes.floats()],
            quantized: QuantizedRows::with_capacity(sizes.quantized_rows(), max_in),
            packed: PackedScratch::new(team, if sizes.quantizes { max_rows } else { 0 }),
            panels: PanelScratch::new(team),
            sums: ExpertScratch::new(team, if sizes.gathers { max_rows } else { 0 }),
            bf16,
        })
    }
}

/// What products with experts run with.
pub(super) struct ExpertStep<'a> {
    pub(super) team: &'a Team,
    pub(super) tier: Tier,
    pub(super) weights: &'a Weights,
    pub(super) packed: &'a PackedWeights,
    pub(super) arithmetic: Arithmetic,
    pub(super) rows: RoleRows<'a>,
}

impl ExpertStep<'_> {
    /// Runs the step on the arena.
    pub(super) fn run(
        &self,
        linear: &ExpertLinear,
        step: &Step,
        arena: &mut Arena,
        memory: &mut ExpertMemory,
    ) {
        let ExpertLinear { prologue, parts, n_experts, n_chosen, n_in } = linear;
        let ways = |phase: usize| {
            move |part: &ExpertPart| {
                ways(self.weights.get(part.weight), self.arithmetic, self.tier)[phase]
            }
        };
        let is_one = parts.iter().all(|part| ways(0)(part) == ways(1)(part));
        // Decode rows and prefill rows apart where a part meets them in different ways.
        for (phase, run) in self.rows.runs([0, usize::from(!is_one)]) {
            let way = ways(phase);
            let n_rows = self.rows.n_rows;
            let routes = step.inputs.last().expect("experts have routes");
            let (x, up) = (&step.inputs[0], &step.inputs[1]);
            let inputs = [(x, n_rows), (up, n_rows), (routes, n_rows)];
            let (mut out, inputs) = arena.borrow((&step.output, n_rows), inputs);
            let [x, up, routes] = inputs.map(|rows| rows.slice_rows(run.rows.clone()));
            let input = match prologue {
                Prologue::None => ExpertInput::Plain(x),
                Prologue::Act(act) => ExpertInput::Act(*act, x),
                Prologue::Gated(act) => ExpertInput::Gated(*act, x, up),
                Prologue::Norm(_) => unreachable!("experts have no norms"),
            };
            memory.rows.sort(routes, *n_experts);
            let mut out = out.slice_rows(run.rows);
            self.prepare(
                &|wanted| parts.iter().any(|part| way(part) == wanted),
                &input,
                *n_in,
                memory,
            );
            let mut col = 0;
            for parts in parts.chunk_by(|a, b| way(a) == way(b)) {
                let width = n_chosen * parts.iter().map(|part| part.out).sum::<usize>();
                let out = out.slice_cols(col..col + width);
                col += width;
                self.multiply(way(&parts[0]), parts, *n_in, memory, out);
            }
        }
    }

    /// Puts what the rows multiply in the forms that the ways read of which the step has parts.
    fn prepare(
        &self,
        has: &dyn Fn(Way) -> bool,
        input: &ExpertInput<'_>,
        n_in: usize,
        memory: &mut ExpertMemory,
    ) {
        let (team, tier) = (self.team, self.tier);
        let ExpertMemory { rows, floats, quantized, bf16, .. } = memory;
        if has(Way::Packed) {
            rows.quantize(team, tier, input, n_in, quantized);
        }
        if ![Way::Rows, Way::Widened, Way::Tiles].into_iter().any(has) {
            return;
        }
        let n_pairs = rows.n_pairs();
        let floats = &mut floats[..n_pairs * n_in];
        rows.gather(team, tier, input, RowsMut::new(floats, n_pairs, n_in));
        if has(Way::Tiles) {
            let (out, _) = bf16.as_mut().expect("the memory is for the tier");
            rows.pack(team, tier, Rows::new(floats, n_pairs, n_in), out);
        }
    }

    /// Multiplies with parts of one way.
    fn multiply(
        &self,
        way: Way,
        parts: &[ExpertPart],
        n_in: usize,
        memory: &ExpertMemory,
        out: RowsMut<'_>, // [n_rows, n_chosen * outs of the parts]
    ) {
        let (team, tier) = (self.team, self.tier);
        let ExpertMemory { rows, floats, quantized, packed, panels, sums, bf16 } = memory;
        assert!(parts.len() <= MAX_PARTS, "{} parts of experts", parts.len());
        let mut outs = [0; MAX_PARTS];
        outs.iter_mut().zip(parts).for_each(|(out, part)| *out = part.out);
        let outs = &outs[..parts.len()];
        let x = || Rows::new(&floats[..rows.n_pairs() * n_in], rows.n_pairs(), n_in);
        let plain = |part: usize, expert| self.plain(&parts[part], expert);
        let plain = ExpertParts { outs, matrix: &plain };
        match way {
            Way::Packed => {
                let matrix = |part: usize, expert| {
                    let id = parts[part].weight;
                    self.packed.expert(id, expert).expect("the parts are packed")
                };
                let parts = ExpertParts { outs, matrix: &matrix };
                kernels::experts_packed(team, tier, parts, rows, quantized, out, packed);
            }
            Way::Rows => kernels::experts_rows(team, tier, plain, rows, x(), out),
            Way::Widened => {
                kernels::experts_f32(team, tier, plain, rows, x(), out, panels, sums);
            }
            Way::Tiles => {
                let matrix =
                    |part: usize, expert| match self.packed.expert(parts[part].weight, expert) {
                        Some(matrix) => WeightsRef::Packed(matrix),
                        None => WeightsRef::Float(self.plain(&parts[part], expert)),
                    };
                let parts = ExpertParts { outs, matrix: &matrix };
                let (x, widened) = bf16.as_ref().expect("the memory is for the tier");
                kernels::experts_bf16(team, tier, parts, rows, x, out, widened, sums);
            }
        }
    }

    /// The matrix of an expert as it lies in the file.
    fn plain(&self, part: &ExpertPart, expert: usize) -> MatrixRef<'_> {
        match self.weights.get(part.weight) {
            WeightData::Experts { ty, rows, cols, data } => {
                MatrixRef::new(*ty, *rows, *cols, &data[expert])
            }
            _ => panic!("weight {} is not of experts", part.weight.idx()),
        }
    }
}

/// Chooses the experts of rows.
pub(super) fn route(
    team: &Team,
    route: &Route,
    weights: &Weights,
    step: &Step,
    arena: &mut Arena,
    n_rows: usize,
) {
    let (out, [scores]) = arena.borrow((&step.output, n_rows), [(&step.inputs[0], n_rows)]);
    kernels::route(team, &names::routing(route, weights), scores, out);
}

/// Adds up the results of the rows' experts.
pub(super) fn combine(team: &Team, step: &Step, arena: &mut Arena, n_rows: usize) {
    let inputs = [(&step.inputs[0], n_rows), (&step.inputs[1], n_rows)];
    let (out, [x, routes]) = arena.borrow((&step.output, n_rows), inputs);
    kernels::combine(team, x, routes, out);
}
