//! Layers of which a row uses a few experts, on the device: their matrices and the binding of their
//! kernels.
//!
//! Which experts a row chose stays on the device. Generated rows take quantized activations as those
//! of other products do, rows of prompts F32.

use super::bind::{Binder, Count, Run, is_int8, view};
use super::upload::matrix_type;
use super::words::{Rows, rows_at};
use crate::graph::plan::Step;
use crate::graph::weights::{WeightId, Weights};
use crate::graph::{ExpertLinear, ExpertPart, Prologue, Route, Scoring};
use realizar_kernels_wgpu as kernels;
use realizar_kernels_wgpu::{Error, Gpu, Matrix, Routing};

/// Type and shape of the matrices of experts: their number, rows and columns.
pub(super) fn shape(weights: &Weights, id: WeightId) -> (realizar_quant::BlockType, [u32; 3]) {
    let weight = weights.get(id);
    let (ty, rows, cols) = weight.matrix_shape().expect("the weight of experts is matrices");
    (ty, [weight.blocks().len() as u32, rows as u32, cols as u32])
}

/// Why a device cannot run the choice.
pub(super) fn route_refusal(route: &Route) -> Option<String> {
    if route.groups.is_some() {
        return Some("routing to groups of experts".to_owned());
    }
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

/// Kernels of a step with experts, at most.
pub(super) fn n_kernels(gpu: &Gpu, weights: &Weights, linear: &ExpertLinear) -> usize {
    // What has no kernels is refused when it is loaded.
    let of_part = |part: &ExpertPart| {
        let (ty, shape) = shape(weights, part.weight);
        2 * Matrix::n_expert_kernels(gpu, "experts", ty, shape).unwrap_or(0) as usize
    };
    linear.parts.iter().map(of_part).sum::<usize>()
}

impl Binder<'_> {
    /// The kernel that chooses the experts of all rows.
    pub(super) fn route(&self, route: &Route, step: &Step) -> Result<kernels::Kernel, Error> {
        let routing = Routing {
            scoring: match route.scoring {
                Scoring::Softmax => kernels::Scoring::Softmax,
                Scoring::Sigmoid => kernels::Scoring::Sigmoid,
                Scoring::SoftmaxOfChosen => kernels::Scoring::SoftmaxOfChosen,
            },
            n_chosen: route.n_chosen as u32,
            choice_bias: self.weight(route.choice_bias),
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
    pub(super) fn experts(&self, linear: &ExpertLinear, step: &Step) -> Result<Vec<Run>, Error> {
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
            push(kernels::expert_matvec(self.gpu, self.rows(prompt), &product)?, prompt);
        }
        Ok(runs)
    }
}

/// Whether generated rows of the products take quantized activations.
pub(super) fn takes_quantized(weights: &Weights, linear: &ExpertLinear) -> bool {
    linear.parts.iter().any(|part| kernels::takes_quantized(matrix_type(weights, part.weight)))
}
