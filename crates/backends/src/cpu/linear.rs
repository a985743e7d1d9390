//! The linear step: prologue, matrix product in the arithmetic of each row's
//! phase, bias and residual.

use super::memory::Arena;
use super::names;
use super::packed::PackedWeights;
use super::phases::{RoleRows, Run, packed_arithmetics};
use crate::Arithmetic;
use realizar_kernels_cpu as kernels;
use realizar_kernels_cpu::{
    Bf16Rows, Bf16Scratch, Epilogue, MatrixRef, PackedArithmetic, PackedRef, PackedScratch,
    PanelScratch, QuantizedRows, Rows, RowsMut, Team, Tier, WeightsRef,
};
use realizar_model::graph::plan::{Plan, Step};
use realizar_model::graph::weights::{WeightData, Weights};
use realizar_model::graph::{LinearPart, Op, Prologue, RowDomain};
use std::ops::Range;

/// Memory that every linear step works in, sized for the largest.
#[derive(Debug)]
pub(super) struct LinearScratch {
    /// Rows after the prologue.
    input: Vec<f32>, // [max rows * max in]
    products: ProductScratch,
}

/// Memory of the matrix products.
#[derive(Debug)]
struct ProductScratch {
    quantized: QuantizedRows,
    packed: PackedScratch,
    panels: PanelScratch,
    /// Of a tier that multiplies prefill rows in BF16.
    bf16: Option<(Bf16Rows, Bf16Scratch)>,
}

/// The linear steps of a plan with their parts.
pub(super) fn linears(plan: &Plan) -> impl Iterator<Item = (&Step, &Prologue, &[LinearPart])> {
    plan.steps.iter().filter_map(|step| match &step.op {
        Op::Linear { prologue, parts, .. } => Some((step, prologue, parts.as_slice())),
        _ => None,
    })
}

/// The sizes of what linear steps work in.
struct ScratchSizes {
    /// Rows after the prologue, in elements.
    input_len: usize,
    /// Rows that are quantized, each plane counted.
    max_quantized: usize,
    /// Rows that are rounded to BF16.
    max_bf16: usize,
    /// Columns of both.
    max_in: usize,
}

impl ScratchSizes {
    fn of(plan: &Plan, arithmetic: Arithmetic, tier: Tier) -> Self {
        let max_rows = plan.limits.tokens.max(plan.limits.outputs);
        // Each row may have two planes.
        let quantized = linears(plan).map(|(step, ..)| match step.output.rows {
            RowDomain::Tokens => plan.limits.tokens.saturating_mul(2),
            RowDomain::Outputs => plan.limits.outputs.saturating_mul(2),
        });
        let widest = |keep: fn(&Prologue) -> bool| {
            let kept = linears(plan).filter(|(_, prologue, _)| keep(prologue));
            kept.map(|(step, ..)| step.inputs[0].width).max().unwrap_or(0)
        };
        Self {
            input_len: max_rows * widest(|prologue| *prologue != Prologue::None),
            max_quantized: match arithmetic {
                Arithmetic::Auto => quantized.max().unwrap_or(0),
                Arithmetic::F32 => 0,
            },
            max_bf16: match packed_arithmetics(arithmetic, tier, RowDomain::Tokens) {
                [_, PackedArithmetic::Bf16] => plan.limits.tokens,
                _ => 0,
            },
            max_in: widest(|_| true),
        }
    }
}

/// Bytes that linear steps work in, beside the arena; without the buffers of single threads.
pub(super) fn scratch_bytes(plan: &Plan, arithmetic: Arithmetic, tier: Tier) -> usize {
    let sizes = ScratchSizes::of(plan, arithmetic, tier);
    let quantized = QuantizedRows::bytes_for(sizes.max_quantized, sizes.max_in);
    let bf16 = Bf16Rows::bytes_for(sizes.max_bf16, sizes.max_in);
    let input = sizes.input_len.saturating_mul(size_of::<f32>());
    input.saturating_add(quantized).saturating_add(bf16)
}

impl LinearScratch {
    /// `None` when there is too little memory.
    pub(super) fn new(
        plan: &Plan,
        arithmetic: Arithmetic,
        tier: Tier,
        team: &Team,
    ) -> Option<Self> {
        let ScratchSizes { input_len, max_quantized, max_bf16, max_in } =
            ScratchSizes::of(plan, arithmetic, tier);
        let bf16 = if max_bf16 > 0 {
            Some((Bf16Rows::with_capacity(max_bf16, max_in)?, Bf16Scratch::new(team)?))
        } else {
            None
        };
        Some(Self {
            input: vec![0.0; input_len],
            products: ProductScratch {
                quantized: QuantizedRows::with_capacity(max_quantized, max_in),
                packed: PackedScratch::new(team, max_quantized),
                panels: PanelScratch::new(team),
                bf16,
            },
        })
    }
}

/// How the kernels read weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Packed, with quantized activations.
    Packed,
    /// As floats of the file.
    Floats,
    /// As blocks of the file, widened to floats.
    Blocks,
}

/// What a linear step runs with.
pub(super) struct LinearStep<'a> {
    pub(super) team: &'a Team,
    pub(super) tier: Tier,
    pub(super) weights: &'a Weights,
    pub(super) packed: &'a PackedWeights,
    pub(super) arithmetic: Arithmetic,
    pub(super) rows: RoleRows<'a>,
    /// The step's biases, from [`Weights::stacked_bias`].
    pub(super) bias: Option<&'a [f32]>, // [out]
}

impl LinearStep<'_> {
    /// Runs the step on the arena.
    pub(super) fn run(&self, step: &Step, arena: &mut Arena, scratch: &mut LinearScratch) {
        let arithmetics = packed_arithmetics(self.arithmetic, self.tier, step.output.rows);
        for (arithmetic, run) in self.rows.runs(arithmetics) {
            self.run_rows(arithmetic, &run, step, arena, scratch);
        }
    }

    /// Runs the step on some of its rows.
    fn run_rows(
        &self,
        arithmetic: PackedArithmetic,
        run: &Run,
        step: &Step,
        arena: &mut Arena,
        scratch: &mut LinearScratch,
    ) {
        let Op::Linear { prologue, parts, residual } = &step.op else {
            unreachable!("the step is linear")
        };
        let rows = || run.rows.clone();
        let (n_rows, n_in) = (run.rows.len(), step.inputs[0].width);
        let LinearScratch { input, products } = scratch;
        let is_packed = |part: &LinearPart| self.packed.get(part.weight).is_some();
        let quantizes = arithmetic == PackedArithmetic::Int8;
        // Rows of two planes are in a run of all rows; they have one arithmetic then.
        let fine = if n_rows == self.rows.n_rows { self.rows.fine } else { &[] };
        // Where every part reads the rows quantized, the prologue need not write floats, but for rows
        // of two planes, which are made of them.
        let fused = quantizes && *prologue != Prologue::None && parts.iter().all(is_packed);
        let with_floats = *prologue != Prologue::None && !fused;
        if fused {
            let out = &mut products.quantized;
            self.quantized_prologue(prologue, (run, fine), step, arena, (out, input));
        } else if with_floats {
            let out = RowsMut::new(&mut input[..n_rows * n_in], n_rows, n_in);
            self.prologue(prologue, run.rows.clone(), step, arena, out);
        }
        let all_rows = self.rows.n_rows;
        // A place that is not used is borrowed as well: the first input's.
        let last = step.inputs.last().unwrap_or(&step.inputs[0]);
        let inputs = [(&step.inputs[0], all_rows), (last, all_rows)];
        let (mut out, [x, last]) = arena.borrow((&step.output, all_rows), inputs);
        let x = if with_floats {
            Rows::new(&input[..n_rows * n_in], n_rows, n_in)
        } else {
            x.slice_rows(rows())
        };
        let residual = residual.then(|| last.slice_rows(rows()));
        let out = out.slice_rows(rows());
        match arithmetic {
            PackedArithmetic::Bf16 => self.multiply_bf16(parts, x, residual, out, products),
            PackedArithmetic::Int8 => {
                if !fused && parts.iter().any(is_packed) {
                    products.quantized.quantize_in_planes(self.team, self.tier, x, fine);
                }
                self.multiply(parts, run.n_decode, x, residual, out, products);
            }
        }
    }

    /// Multiplies in BF16, but for blocks that are widened to floats.
    fn multiply_bf16(
        &self,
        parts: &[LinearPart],
        x: Rows<'_>,                // [n_rows, in]
        residual: Option<Rows<'_>>, // [n_rows, out]
        mut out: RowsMut<'_>,       // [n_rows, out]
        scratch: &mut ProductScratch,
    ) {
        let (team, tier) = (self.team, self.tier);
        let ProductScratch { panels, bf16, .. } = scratch;
        let (rows, widened) = bf16.as_mut().expect("the scratch is for the tier");
        let is_blocks = |part: &LinearPart| self.form(part) == Form::Blocks;
        if !parts.iter().all(is_blocks) {
            rows.pack(team, tier, x);
        }
        let mut col = 0;
        for run in parts.chunk_by(|a, b| is_blocks(a) == is_blocks(b)) {
            let cols = col..col + run.iter().map(|part| part.out).sum::<usize>();
            col = cols.end;
            let out = out.slice_cols(cols.clone());
            let epilogue = self.epilogue(residual, cols);
            if is_blocks(&run[0]) {
                self.multiply_floats(run, 0, x, out, &epilogue, panels);
                continue;
            }
            let weights = each(run, |part| match self.packed.get(part.weight) {
                Some(matrix) => WeightsRef::Packed(matrix),
                None => WeightsRef::Float(self.matrix(part)),
            });
            let weights = &weights[..run.len()];
            kernels::matmul_bf16(team, tier, weights, rows, out, widened, &epilogue);
        }
    }

    /// What is added to the products in some columns of the result.
    fn epilogue<'a>(&'a self, residual: Option<Rows<'a>>, cols: Range<usize>) -> Epilogue<'a> {
        Epilogue {
            bias: self.bias.map(|bias| &bias[cols.clone()]),
            residual: residual.map(|residual| residual.slice_cols(cols)),
        }
    }

    /// A matrix as it lies in the file.
    fn matrix(&self, part: &LinearPart) -> MatrixRef<'_> {
        match self.weights.get(part.weight) {
            WeightData::Matrix { ty, rows, cols, data } => MatrixRef::new(*ty, *rows, *cols, data),
            _ => panic!("weight {} is no matrix to multiply with", part.weight.idx()),
        }
    }

    /// Some rows after the prologue, as floats.
    fn prologue(
        &self,
        prologue: &Prologue,
        rows: Range<usize>,
        step: &Step,
        arena: &Arena,
        out: RowsMut<'_>,
    ) {
        let (team, tier) = (self.team, self.tier);
        let x = self.input(rows.clone(), step, arena, 0);
        match prologue {
            Prologue::None => {}
            Prologue::Norm(norm) => {
                kernels::norm(team, tier, &names::norm(norm, self.weights), x, out);
            }
            Prologue::Gated(act) => {
                let up = self.input(rows, step, arena, 1);
                kernels::gated(team, tier, *act, x, up, out);
            }
            Prologue::Act(act) => {
                kernels::activate(team, tier, *act, x, out);
            }
        }
    }

    /// Some rows of an input.
    fn input<'a>(&self, rows: Range<usize>, step: &Step, arena: &'a Arena, idx: usize) -> Rows<'a> {
        arena.rows(&step.inputs[idx], self.rows.n_rows).slice_rows(rows)
    }

    /// The rows after the prologue, quantized, the `fine` ones in two planes; their bytes are those
    /// of the two steps apart. Works in `floats`.
    fn quantized_prologue(
        &self,
        prologue: &Prologue,
        (run, fine): (&Run, &[Range<usize>]),
        step: &Step,
        arena: &Arena,
        (out, floats): (&mut QuantizedRows, &mut [f32]),
    ) {
        let (team, tier) = (self.team, self.tier);
        let x = self.input(run.rows.clone(), step, arena, 0);
        let n_in = x.n_cols();
        out.arrange(x.n_rows(), n_in, fine);
        match prologue {
            Prologue::None => unreachable!("there is a prologue"),
            Prologue::Norm(norm) => {
                kernels::norm_quantize(team, tier, &names::norm(norm, self.weights), x, out);
            }
            Prologue::Gated(act) => {
                let up = self.input(run.rows.clone(), step, arena, 1);
                kernels::gated_quantize(team, tier, *act, x, up, out);
            }
            Prologue::Act(act) => {
                kernels::activate_quantize(team, tier, *act, x, out);
            }
        }
        let mut n_fine = 0;
        for rows in fine {
            let place = n_fine * n_in..(n_fine + rows.len()) * n_in;
            let part = RowsMut::new(&mut floats[place], rows.len(), n_in);
            self.prologue(prologue, rows.clone(), step, arena, part);
            n_fine += rows.len();
        }
        if n_fine > 0 {
            let x = Rows::new(&floats[..n_fine * n_in], n_fine, n_in);
            out.quantize_pairs(team, tier, x);
        }
    }

    /// Multiplies with runs of parts that are packed, for which the rows are quantized
    /// already, and of parts that are not.
    fn multiply(
        &self,
        parts: &[LinearPart],
        n_decode: usize,
        x: Rows<'_>,                // [n_rows, in]
        residual: Option<Rows<'_>>, // [n_rows, out]
        mut out: RowsMut<'_>,       // [n_rows, out]
        scratch: &mut ProductScratch,
    ) {
        let ProductScratch { quantized, packed, panels, .. } = scratch;
        let mut col = 0;
        for run in parts.chunk_by(|a, b| self.form(a) == self.form(b)) {
            let cols = col..col + run.iter().map(|part| part.out).sum::<usize>();
            col = cols.end;
            let out = out.slice_cols(cols.clone());
            let epilogue = self.epilogue(residual, cols);
            if self.form(&run[0]) == Form::Packed {
                let matrices = each(run, |part| {
                    self.packed.get(part.weight).expect("the parts of the run are packed")
                });
                let matrices: &[PackedRef<'_>] = &matrices[..run.len()];
                let (team, tier) = (self.team, self.tier);
                kernels::matmul_packed(team, tier, matrices, quantized, out, packed, &epilogue);
            } else {
                self.multiply_floats(run, n_decode, x, out, &epilogue, panels);
            }
        }
    }

    /// How the kernels read a part's weights.
    fn form(&self, part: &LinearPart) -> Form {
        if self.packed.get(part.weight).is_some() {
            return Form::Packed;
        }
        match self.weights.get(part.weight) {
            WeightData::Matrix { ty, .. } if kernels::supports_rows(*ty) => Form::Floats,
            _ => Form::Blocks,
        }
    }

    /// Multiplies F32 activations with matrices as they lie in the file, the rows of
    /// generated tokens and of prompts each by their kernel. Blocks have one for both.
    fn multiply_floats(
        &self,
        parts: &[LinearPart],
        n_decode: usize,
        x: Rows<'_>,          // [n_rows, in]
        mut out: RowsMut<'_>, // [n_rows, out of the parts]
        epilogue: &Epilogue<'_>,
        panels: &PanelScratch,
    ) {
        let matrices = each(parts, |part| self.matrix(part));
        let matrices = &matrices[..parts.len()];
        let n_decode = match self.arithmetic {
            Arithmetic::Auto if self.form(&parts[0]) == Form::Floats => n_decode,
            Arithmetic::Auto | Arithmetic::F32 => 0,
        };
        let n_rows = x.n_rows();
        let (team, tier) = (self.team, self.tier);
        let of_rows = |rows: Range<usize>| Epilogue {
            residual: epilogue.residual.map(|residual| residual.slice_rows(rows)),
            ..*epilogue
        };
        if n_decode > 0 {
            let rows = 0..n_decode;
            let (x, out) = (x.slice_rows(rows.clone()), out.slice_rows(rows.clone()));
            kernels::matmul_rows(team, tier, matrices, x, out, &of_rows(rows));
        }
        if n_decode < n_rows {
            let rows = n_decode..n_rows;
            let (x, out) = (x.slice_rows(rows.clone()), out.slice_rows(rows.clone()));
            kernels::matmul_f32(team, tier, matrices, x, out, panels, &of_rows(rows));
        }
    }
}

/// The maximum number of parts that a linear step has; merging more would gain nothing.
const MAX_PARTS: usize = 8;

/// The matrices of `parts`, the last repeated up to [`MAX_PARTS`].
fn each<T>(parts: &[LinearPart], matrix: impl Fn(&LinearPart) -> T) -> [T; MAX_PARTS] {
    assert!((1..=MAX_PARTS).contains(&parts.len()), "{} parts of a linear step", parts.len());
    std::array::from_fn(|i| matrix(&parts[i.min(parts.len() - 1)]))
}
