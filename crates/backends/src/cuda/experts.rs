//! Layers of which a row uses a few experts: the choice, and the products with the experts that rows chose.
//!
//! Which experts a row chose stays on the device. Pairs of rows and experts are sorted by expert for prompts, and for
//! decode rows where enough of them share an expert.

use super::products::{Form, form};
use super::steps::Launcher;
use crate::Phase;
use crate::gpu::weights::matrix_type;
use realizar_kernels_cuda as kernels;
use realizar_kernels_cuda::{
    Device, Driver, Error, ExpertPairs, Matrix, PairTiles, Routing, Rows, is_worth_sorting,
    takes_own_halves,
};
use realizar_model::graph::plan::{Plan, Step};
use realizar_model::graph::weights::Weights;
use realizar_model::graph::{ExpertLinear, ExpertPart, Op, Route, Scoring};
use realizar_quant::BlockType;
use std::sync::Arc;

/// Room for the pairs of rows and their experts: pairs, and experts of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PairRoom(Option<(usize, usize)>);

impl PairRoom {
    /// For the largest step of a plan; none where it has no experts.
    pub(super) fn new(plan: &Plan) -> Self {
        let of_step = |step: &Step| match &step.op {
            Op::ExpertLinear(linear) => {
                let n_rows = plan.limits.of(step.output.rows);
                Some((n_rows * linear.n_chosen, linear.n_experts))
            }
            _ => None,
        };
        let most = plan.steps.iter().filter_map(of_step);
        Self(most.reduce(|a, b| (a.0.max(b.0), a.1.max(b.1))))
    }

    /// Bytes on the device.
    pub(super) fn n_bytes(&self) -> usize {
        self.0.map_or(0, |(n_pairs, n_experts)| ExpertPairs::<Driver>::bytes(n_pairs, n_experts))
    }
}

/// Pairs of rows and experts.
#[derive(Debug)]
pub(super) struct Experts<D: Device>(Option<ExpertPairs<D>>);

impl<D: Device> Experts<D> {
    pub(super) fn new(device: &Arc<D>, room: PairRoom) -> Result<Self, Error> {
        let pairs = room.0.map(|(pairs, experts)| ExpertPairs::new(device, pairs, experts));
        Ok(Self(pairs.transpose()?))
    }
}

/// The types of the matrices of experts, each at least once.
pub(super) fn types<'a>(
    plan: &'a Plan,
    weights: &'a Weights,
) -> impl Iterator<Item = BlockType> + 'a {
    let of_step = |step: &'a Step| match &step.op {
        Op::ExpertLinear(linear) => Some(&linear.parts),
        _ => None,
    };
    let parts = plan.steps.iter().filter_map(of_step).flatten();
    parts.map(|part| matrix_type(weights, part.weight))
}

impl<D: Device> Launcher<'_, D> {
    /// The choice of each row's experts.
    pub(super) fn route(
        &self,
        route: &Route,
        scores: Rows<'_, D>,
        out: Rows<'_, D>,
    ) -> Result<(), Error> {
        let routing = Routing {
            scoring: match route.scoring {
                Scoring::Softmax => kernels::Scoring::Softmax,
                Scoring::Sigmoid => kernels::Scoring::Sigmoid,
                Scoring::SoftmaxOfChosen => kernels::Scoring::SoftmaxOfChosen,
                Scoring::SparseMixer { margin } => kernels::Scoring::SparseMixer { margin },
            },
            n_experts_used: route.n_chosen,
            choice_bias: self.weight(route.choice_bias, route.n_experts),
            groups: route.groups.map(|groups| kernels::Groups {
                n: groups.n,
                n_open: groups.n_open,
                n_best: groups.n_best,
            }),
            normalize: route.normalize,
            scale: route.scale,
            // Rows that a step is filled up with have no sequence. There are some only where all rows are outputs.
            active: self.is_captured.then(|| self.list(self.places.seq_of_row, scores.n_rows())),
        };
        kernels::route(self.kernels, self.stream(), &routing, scores, out)
    }

    /// Products of the rows of a phase with their experts.
    pub(super) fn experts(
        &self,
        step: &Step,
        linear: &ExpertLinear,
        phase: Phase,
    ) -> Result<(), Error> {
        let rows = self.of_phase(step.output.rows, phase);
        if rows.is_empty() {
            return Ok(());
        }
        let (kernels, stream) = (self.kernels, self.stream());
        let ExpertLinear { n_experts, n_chosen, .. } = *linear;
        let [x, routes] = [0, 1].map(|i| self.rows(&step.inputs[i], rows.clone()));
        let out = self.rows(&step.output, rows.clone());
        let room = self.experts.0.as_ref().expect("there is room for pairs");
        let n_pairs = rows.len() * n_chosen;
        let tiles = match phase {
            Phase::Decode => is_worth_sorting(n_pairs, n_experts).then_some(PairTiles::Decode),
            Phase::Prefill => Some(PairTiles::for_prefill(n_pairs, n_experts)),
        };
        let sort = |tiles| kernels::sort_by_expert(kernels, stream, routes, n_experts, tiles, room);
        let sorted = tiles.map(sort).transpose()?;
        let matrix = |part: &ExpertPart| self.weights.table(part.weight);
        let has_own = x.n_cols() != linear.n_in;
        let form = |part: &ExpertPart| match form(self.arithmetic, phase, matrix(part).ty()) {
            // What begins inside of a step of columns is multiplied in F32.
            Form::Half(_) if has_own && !takes_own_halves(linear.n_in) => Form::F32,
            Form::Parts => Form::F32,
            form => form,
        };
        let mut first = 0;
        for parts in linear.parts.chunk_by(|a, b| form(a) == form(b)) {
            let width = n_chosen * parts.iter().map(|part| part.out).sum::<usize>();
            let out = out.columns(first, width);
            first += width;
            let matrices: Vec<&Matrix<D>> = parts.iter().map(matrix).collect();
            let of = Of { matrices: &matrices, n_experts, routes, out };
            match form(&parts[0]) {
                Form::F32 => match (phase, sorted) {
                    (Phase::Prefill, Some(sorted)) => {
                        kernels::expert_matmul(kernels, stream, &of.linear(x), sorted)?;
                    }
                    _ => kernels::expert_matvec(kernels, stream, &of.linear(x), sorted)?,
                },
                Form::Quantized => {
                    let to = self.products.of_experts(rows.start, &x);
                    kernels::quantize(kernels, stream, x, to)?;
                    kernels::expert_matvec_int8(kernels, stream, &of.linear(to), sorted)?;
                }
                Form::Parts => unreachable!("experts have no kernels with activations in parts"),
                Form::Wgmma(_) => unreachable!("experts have no kernels for groups of warps"),
                Form::Half(ty) => {
                    let to = self.products.halves(ty, rows.start, &x);
                    kernels::round_rows(kernels, stream, x, to)?;
                    let sorted = sorted.expect("prompts are sorted, and only they take halves");
                    kernels::expert_matmul_half(kernels, stream, &of.linear(to), sorted)?;
                }
            }
        }
        Ok(())
    }
}

/// Products with some of the matrices of a step.
struct Of<'a, D: Device> {
    matrices: &'a [&'a Matrix<D>],
    n_experts: usize,
    routes: Rows<'a, D>,
    out: Rows<'a, D>,
}

impl<'a, D: Device> Of<'a, D> {
    /// The same with rows of any form.
    fn linear<X>(&self, x: X) -> kernels::ExpertLinear<'a, D, X> {
        let &Self { matrices, n_experts, routes, out } = self;
        kernels::ExpertLinear { matrices, n_experts, x, routes, out }
    }
}
