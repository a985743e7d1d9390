//! Layers of which a row uses a few experts, on the device: their matrices and the binding of their
//! kernels.
//!
//! Which experts a row chose stays on the device. Decode rows take quantized activations as those
//! of other products do. Prefill rows take F32: they are sorted by expert, once for all products that
//! follow a choice, and multiplied in tiles.

use super::bind::{Binder, Count, Run, is_int8, view};
use super::words::{Rows, rows_at};
use crate::gpu::weights::matrix_type;
use realizar_kernels_wgpu as kernels;
use realizar_kernels_wgpu::{Error, ExpertPairs, Gpu, MatmulOptions, Matrix, Routing, RowsAt};
use realizar_model::graph::plan::{Plan, Step};
use realizar_model::graph::weights::{WeightId, Weights};
use realizar_model::graph::{ExpertLinear, ExpertPart, Op, Prologue, Route};
use realizar_quant::BlockType;

/// Type and shape of the matrices of experts: their number, rows and columns.
pub(super) fn shape(weights: &Weights, id: WeightId) -> (realizar_quant::BlockType, [u32; 3]) {
    let weight = weights.get(id);
    let (ty, rows, cols) = weight.matrix_shape().expect("the weight of experts is matrices");
    (ty, [weight.blocks().len() as u32, rows as u32, cols as u32])
}

/// Why a device cannot run the choice.
pub(super) fn route_refusal(route: &Route) -> Option<String> {
    let most = Routing::MAX_EXPERTS as usize;
    (route.n_experts > most).then(|| format!("routing to {} experts", route.n_experts))
}

/// Why a device cannot run the products with a part.
pub(super) fn refusal(gpu: &Gpu, weights: &Weights, part: &ExpertPart) -> Option<String> {
    let (ty, shape) = shape(weights, part.weight);
    let error = Matrix::n_expert_kernels(gpu, "experts", ty, shape).err()?;
    let [n, rows, cols] = shape;
    Some(format!("experts of {ty} [{n}, {rows}, {cols}]: {error}"))
}

/// Tiles of two heights.
const HEIGHTS: usize = 2;

/// Kernels of the products of step `idx` of a plan.
pub(super) fn n_kernels(
    gpu: &Gpu,
    weights: &Weights,
    (plan, idx): (&Plan, usize),
    linear: &ExpertLinear,
) -> usize {
    // What has no kernels is refused when it is loaded.
    let of_part = |part: &ExpertPart| {
        let (ty, shape) = shape(weights, part.weight);
        let of_matrix = Matrix::n_expert_kernels(gpu, "experts", ty, shape).unwrap_or(0) as usize;
        (1 + HEIGHTS) * of_matrix
    };
    let sorts = if is_sorted_before(plan, idx) { 0 } else { HEIGHTS };
    linear.parts.iter().map(of_part).sum::<usize>() + sorts
}

/// Whether the rows were sorted for the products before those of step `idx`, by the same choice.
fn is_sorted_before(plan: &Plan, idx: usize) -> bool {
    let concerns = |step: &&Step| matches!(step.op, Op::Route(_) | Op::ExpertLinear(_));
    let before = plan.steps[..idx].iter().rev().find(concerns);
    before.is_some_and(|before| match (&before.op, &plan.steps[idx].op) {
        (Op::ExpertLinear(a), Op::ExpertLinear(b)) => {
            let is_same = before.inputs[1] == plan.steps[idx].inputs[1];
            is_same && a.n_experts == b.n_experts && a.n_chosen == b.n_chosen
        }
        _ => false,
    })
}

/// The maximum number of pairs of a row and one of its experts in a step, and the maximum number of experts of a layer; none
/// where a plan has no experts.
pub(super) fn most_pairs(plan: &Plan) -> Option<(u32, u32)> {
    let of_step = |step: &Step| match &step.op {
        Op::ExpertLinear(linear) => {
            let n_rows = plan.limits.of(step.output.rows);
            Some(((n_rows * linear.n_chosen) as u32, linear.n_experts as u32))
        }
        _ => None,
    };
    plan.steps.iter().filter_map(of_step).reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)))
}

/// The tiles of a step's pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PairTiles {
    rows: RowsAt,
    n_experts: u32,
    n_chosen: u32,
    few_rows: bool,
}

impl PairTiles {
    /// How many there may be of its height; none where the other one is taken.
    pub(super) fn n(&self, n_rows: u32) -> u32 {
        let n_pairs = n_rows * self.n_chosen;
        // Tiles of 64 read a matrix less often, but are worth it only where they are mostly full.
        if self.few_rows != (n_pairs < 32 * self.n_experts) {
            return 0;
        }
        let tile_rows = self.options(false).tile_rows();
        ExpertPairs::n_tiles(n_pairs, self.n_experts, tile_rows)
    }

    /// The rows that the pairs are of.
    pub(super) fn rows(&self) -> RowsAt {
        self.rows
    }

    fn options(&self, half_tiles: bool) -> MatmulOptions {
        MatmulOptions { few_rows: self.few_rows, half_tiles }
    }
}

impl Binder<'_> {
    /// The kernel that chooses the experts of all rows.
    pub(super) fn route(&self, route: &Route, step: &Step) -> Result<kernels::Kernel, Error> {
        let routing = Routing {
            scoring: route.scoring,
            n_chosen: route.n_chosen as u32,
            choice_bias: self.weight(route.choice_bias),
            groups: route.groups,
            normalize: route.normalize,
            scale: route.scale,
        };
        let rows = self.rows(rows_at(step.output.rows, Rows::All));
        let (scores, out) = (view(&step.inputs[0]), view(&step.output));
        kernels::route(self.gpu, rows, &routing, &self.weights.vectors, scores, out)
    }

    /// The kernel that adds up the results of all rows' experts.
    pub(super) fn combine(&self, step: &Step) -> Result<kernels::Kernel, Error> {
        let rows = self.rows(rows_at(step.output.rows, Rows::All));
        let [x, routes] = [0, 1].map(|i| view(&step.inputs[i]));
        kernels::combine(self.gpu, rows, x, routes, view(&step.output))
    }

    /// Products with the experts of each row.
    pub(super) fn experts(
        &self,
        linear: &ExpertLinear,
        (plan, idx): (&Plan, usize),
    ) -> Result<Vec<Run>, Error> {
        let step = &plan.steps[idx];
        assert_eq!(linear.prologue, Prologue::None, "the backend asks for no prologues");
        let domain = step.output.rows;
        let [generated, prompt] = [Rows::Generated, Rows::Prompt].map(|rows| rows_at(domain, rows));
        let (x, routes, out) = (view(&step.inputs[0]), view(&step.inputs[1]), view(&step.output));
        let int8 = |matrix: &Matrix| is_int8(self.arithmetic, matrix.ty());
        let matrix = |part: &ExpertPart| self.weights.table(part.weight);
        let mut runs = Vec::new();
        let mut push = |kernels: Vec<kernels::Kernel>, at| {
            runs.extend(kernels.into_iter().map(|kernel| Run::One(kernel, Count::Rows(at))));
        };
        if let Some(to) = self.quantized
            && linear.parts.iter().any(|part| int8(matrix(part)))
        {
            push(vec![kernels::quantize(self.gpu, self.rows(generated), x, to)?], generated);
        }
        let pairs = self.pairs.expect("there is room for the pairs of rows and experts");
        let (n_experts, n_chosen) = (linear.n_experts as u32, linear.n_chosen as u32);
        let heights =
            [true, false].map(|few_rows| PairTiles { rows: prompt, n_experts, n_chosen, few_rows });
        let mut sorts = Vec::new();
        if !is_sorted_before(plan, idx) {
            for tiles in heights {
                let (rows, options) = (self.rows(prompt), tiles.options(false));
                let sort =
                    kernels::sort_by_expert(self.gpu, rows, routes, n_experts, pairs, options)?;
                sorts.push(Run::One(sort, Count::SortPairs(tiles)));
            }
        }
        let mut of_prompts = Vec::new();
        let mut first = 0;
        for part in &linear.parts {
            let width = linear.n_chosen * part.out;
            let product = kernels::ExpertLinear {
                matrix: matrix(part),
                n_outputs: part.out as u32,
                n_chosen: linear.n_chosen as u32,
                vectors: &self.weights.vectors,
                x,
                routes,
                out: super::bind::columns(out, first, width),
            };
            first += width;
            let of_generated = match self.quantized {
                Some(x) if int8(product.matrix) => {
                    kernels::expert_matvec_int8(self.gpu, self.rows(generated), &product, x)?
                }
                _ => kernels::expert_matvec(self.gpu, self.rows(generated), &product)?,
            };
            push(of_generated, generated);
            // Half precision only where it rounds nothing, as in other products.
            let half_tiles = product.matrix.ty() == BlockType::F16;
            for tiles in heights {
                let (rows, options) = (self.rows(prompt), tiles.options(half_tiles));
                let bound = kernels::expert_matmul(self.gpu, rows, &product, pairs, options)?;
                let run = |kernel| Run::One(kernel, Count::PairTiles(tiles));
                of_prompts.extend(bound.into_iter().map(run));
            }
        }
        runs.extend(sorts);
        runs.extend(of_prompts);
        Ok(runs)
    }
}

/// Whether decode rows of the products take quantized activations.
pub(super) fn takes_quantized(weights: &Weights, linear: &ExpertLinear) -> bool {
    linear.parts.iter().any(|part| kernels::takes_quantized(matrix_type(weights, part.weight)))
}
