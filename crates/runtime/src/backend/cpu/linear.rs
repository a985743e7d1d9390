//! The linear step: prologue, matrix product in the arithmetic of each row's
//! role, bias and residual.

use super::memory::Arena;
use super::names;
use crate::backend::Arithmetic;
use crate::graph::{LinearPart, Op, Prologue};
use crate::plan::{Plan, Step};
use crate::weights::{WeightData, Weights};
use realizar_kernels_cpu as kernels;
use realizar_kernels_cpu::{
    Epilogue, MatrixRef, PanelScratch, QuantizedRows, Rows, RowsMut, Team, Tier,
};

/// The rows of a step, split by role.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoleRows {
    /// All rows.
    pub(super) n_rows: usize,
    /// Of these, the first so many are generated tokens.
    pub(super) n_generated: usize,
}

/// Memory that every linear step works in, sized for the largest.
#[derive(Debug)]
pub(super) struct LinearScratch {
    /// Rows after the prologue.
    input: Vec<f32>, // [max rows * max in]
    quantized: QuantizedRows,
    panels: PanelScratch,
}

/// The inputs and outputs of a linear step.
fn linears(plan: &Plan) -> impl Iterator<Item = (&Step, &Prologue, &[LinearPart])> {
    plan.steps.iter().filter_map(|step| match &step.op {
        Op::Linear { prologue, parts, .. } => Some((step, prologue, parts.as_slice())),
        _ => None,
    })
}

impl LinearScratch {
    pub(super) fn new(plan: &Plan, arithmetic: Arithmetic, team: &Team) -> Self {
        let max_rows = plan.limits.tokens.max(plan.limits.outputs);
        let widest = |keep: fn(&Prologue) -> bool| {
            let kept = linears(plan).filter(|(_, prologue, _)| keep(prologue));
            kept.map(|(step, ..)| step.inputs[0].width).max().unwrap_or(0)
        };
        let max_in = widest(|_| true);
        let max_prologue_in = widest(|prologue| *prologue != Prologue::None);
        // Only generated tokens are quantized, and only by default.
        let max_quantized = if arithmetic == Arithmetic::Auto { max_rows } else { 0 };
        Self {
            input: vec![0.0; max_rows * max_prologue_in],
            quantized: QuantizedRows::with_capacity(max_quantized, max_in),
            panels: PanelScratch::new(team),
        }
    }
}

/// What a linear step runs with.
pub(super) struct LinearStep<'a> {
    pub(super) team: &'a Team,
    pub(super) tier: Tier,
    pub(super) weights: &'a Weights,
    pub(super) arithmetic: Arithmetic,
    pub(super) rows: RoleRows,
    /// The step's biases, from [`Weights::stacked_bias`].
    pub(super) bias: Option<&'a [f32]>, // [out]
}

impl LinearStep<'_> {
    /// Runs the step on the arena.
    pub(super) fn run(&self, step: &Step, arena: &mut Arena, scratch: &mut LinearScratch) {
        let Op::Linear { prologue, parts, residual } = &step.op else {
            unreachable!("the step is linear")
        };
        let n_rows = self.rows.n_rows;
        let n_in = step.inputs[0].width;
        let matrices = matrices(parts, self.weights);
        let matrices = &matrices[..parts.len()];
        let LinearScratch { input, quantized, panels } = scratch;
        let with_prologue = *prologue != Prologue::None;
        let quantized_alone = self.quantized_alone(matrices);
        if quantized_alone {
            self.quantized_prologue(prologue, step, arena, quantized);
        } else if with_prologue {
            let out = RowsMut::new(&mut input[..n_rows * n_in], n_rows, n_in);
            self.prologue(prologue, step, arena, out);
        }
        let out = (&step.output, n_rows);
        // A place that is not used is borrowed as well: the first input's.
        let last = step.inputs.last().unwrap_or(&step.inputs[0]);
        let (out, [x, last]) = arena.borrow(out, [(&step.inputs[0], n_rows), (last, n_rows)]);
        let x = if with_prologue && !quantized_alone {
            Rows::new(&input[..n_rows * n_in], n_rows, n_in)
        } else {
            x
        };
        let residual = residual.then_some(last);
        self.multiply(matrices, x, quantized_alone, residual, out, quantized, panels);
    }

    /// Whether every row is read in its quantized form and by no part otherwise, so that the
    /// prologue need not write floats.
    fn quantized_alone(&self, matrices: &[MatrixRef<'_>]) -> bool {
        self.arithmetic == Arithmetic::Auto
            && self.rows.n_generated == self.rows.n_rows
            && matrices.iter().all(|matrix| kernels::takes_quantized(matrix.ty()))
    }

    /// The rows after the prologue, as floats.
    fn prologue(&self, prologue: &Prologue, step: &Step, arena: &Arena, out: RowsMut<'_>) {
        let (team, tier) = (self.team, self.tier);
        let x = arena.rows(&step.inputs[0], self.rows.n_rows);
        match prologue {
            Prologue::None => {}
            Prologue::Norm(norm) => {
                kernels::norm(team, tier, &names::norm(norm, self.weights), x, out);
            }
            Prologue::Gated(act) => {
                let up = arena.rows(&step.inputs[1], self.rows.n_rows);
                kernels::gated(team, tier, names::activation(*act), x, up, out);
            }
            Prologue::Act(act) => {
                kernels::activate(team, tier, names::activation(*act), x, out);
            }
        }
    }

    /// The rows after the prologue, quantized; their bytes are those of the two steps apart.
    fn quantized_prologue(
        &self,
        prologue: &Prologue,
        step: &Step,
        arena: &Arena,
        out: &mut QuantizedRows,
    ) {
        let (team, tier) = (self.team, self.tier);
        let x = arena.rows(&step.inputs[0], self.rows.n_rows);
        match prologue {
            Prologue::None => out.quantize(team, tier, x),
            Prologue::Norm(norm) => {
                kernels::norm_quantize(team, tier, &names::norm(norm, self.weights), x, out);
            }
            Prologue::Gated(act) => {
                let up = arena.rows(&step.inputs[1], self.rows.n_rows);
                kernels::gated_quantize(team, tier, names::activation(*act), x, up, out);
            }
            Prologue::Act(act) => {
                kernels::activate_quantize(team, tier, names::activation(*act), x, out);
            }
        }
    }

    /// Multiplies the rows, which `quantized` holds already where it is all that is read.
    #[expect(clippy::too_many_arguments, reason = "operands and scratch memory of one product")]
    fn multiply(
        &self,
        matrices: &[MatrixRef<'_>],
        x: Rows<'_>, // [n_rows, in]
        quantized_alone: bool,
        residual: Option<Rows<'_>>, // [n_rows, out]
        mut out: RowsMut<'_>,       // [n_rows, out]
        quantized: &mut QuantizedRows,
        panels: &PanelScratch,
    ) {
        let n_generated = match self.arithmetic {
            Arithmetic::Auto => self.rows.n_generated,
            Arithmetic::F32 => 0,
        };
        let epilogue = |rows: std::ops::Range<usize>| Epilogue {
            bias: self.bias,
            residual: residual.map(|r| r.slice_rows(rows)),
        };
        if n_generated > 0 {
            let rows = 0..n_generated;
            let x = x.slice_rows(rows.clone());
            // Float weights multiply the activations as they are.
            let quantizes = matrices.iter().any(|matrix| kernels::takes_quantized(matrix.ty()));
            if quantizes && !quantized_alone {
                quantized.quantize(self.team, self.tier, x);
            }
            let out = out.slice_rows(rows.clone());
            let epilogue = &epilogue(rows);
            kernels::matmul_int8(self.team, self.tier, matrices, quantized, x, out, epilogue);
        }
        if n_generated < self.rows.n_rows {
            let rows = n_generated..self.rows.n_rows;
            let x = x.slice_rows(rows.clone());
            let out = out.slice_rows(rows.clone());
            let epilogue = &epilogue(rows);
            kernels::matmul_f32(self.team, self.tier, matrices, x, out, panels, epilogue);
        }
    }
}

/// The most parts that a linear step has; merging more would gain nothing.
const MAX_PARTS: usize = 8;

/// The matrices of `parts`, the last repeated up to [`MAX_PARTS`].
fn matrices<'a>(parts: &[LinearPart], weights: &'a Weights) -> [MatrixRef<'a>; MAX_PARTS] {
    assert!((1..=MAX_PARTS).contains(&parts.len()), "{} parts of a linear step", parts.len());
    std::array::from_fn(|i| {
        let part = &parts[i.min(parts.len() - 1)];
        match weights.get(part.weight) {
            WeightData::Matrix { ty, rows, cols, data } => MatrixRef::new(*ty, *rows, *cols, data),
            WeightData::Vector(_) => panic!("a vector is no matrix to multiply with"),
        }
    })
}
