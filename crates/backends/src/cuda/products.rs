//! Products with weights. A row's phase decides their arithmetic: decode rows are 8-bit integers where weights have
//! integer levels, or BF16 where that is requested, and two parts of BF16 where weights are floats of 8 or 16 bits; rows of
//! prompts meet weights on tensor cores in half precision, by the instructions of groups of warps (`wgmma`) where they are asked
//! for and the weights' type has them. Sums are F32. F32 weights, the experts of other decode rows and
//! F32 arithmetic stay in F32.

use super::fused::{Fused, FusedSteps, Rounded};
use super::steps::Launcher;
use crate::Phase;
use crate::gpu::weights::matrix_type;
use crate::{Arithmetic, ExecutableOptions};
use realizar_kernels_cuda as kernels;
use realizar_kernels_cuda::{
    Device, Driver, Error, GatedGrouped, GatedQuantized, GatedRows, Grouped, GroupedRows, HalfRows,
    HalfType, Halves, Linear, LinearGrouped, LinearHalf, LinearQuantized, MAX_GATED_ROWS,
    MAX_PARTS, Matrix, ProductRows, QuantType, Quantized, QuantizedRows, Rows, WgmmaKernels,
    half_type,
};
use realizar_model::graph::Op;
use realizar_model::graph::plan::{Plan, Step};
use realizar_model::graph::weights::Weights;
use realizar_quant::BlockType;
use std::sync::Arc;

/// How a matrix is multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// With F32 activations.
    F32,
    /// With quantized activations: decode rows alone.
    Quantized,
    /// With activations in two parts, on tensor cores: decode rows alone.
    Parts,
    /// In half precision, on tensor cores: prefill rows alone.
    Half(HalfType),
    /// The same by groups of warps, whose bits are others: all prefill rows, or none.
    Wgmma(HalfType),
}

/// The form of a product with a matrix of a type.
pub(super) fn form(arithmetic: Arithmetic, phase: Phase, ty: BlockType) -> Form {
    match (arithmetic, phase) {
        (Arithmetic::Auto, Phase::Decode) if kernels::takes_quantized(ty) => Form::Quantized,
        (Arithmetic::Auto, Phase::Decode) if kernels::takes_parts(ty) => Form::Parts,
        (Arithmetic::Auto, Phase::Prefill) => half_type(ty).map_or(Form::F32, Form::Half),
        _ => Form::F32,
    }
}

/// The form of a product with a matrix of a type that is no expert's.
pub(super) fn linear_form(
    arithmetic: Arithmetic,
    has_wgmma: bool,
    phase: Phase,
    ty: BlockType,
) -> Form {
    match form(arithmetic, phase, ty) {
        Form::Half(half) if has_wgmma && WgmmaKernels::<Driver>::takes(ty) => Form::Wgmma(half),
        form => form,
    }
}

/// What was chosen for all products of a backend.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choices {
    /// Whether prefill rows are multiplied by groups of warps where weights have kernels for that.
    pub(super) has_wgmma: bool,
    /// What decode rows are quantized to, but for experts, which take 8-bit integers.
    pub(super) decode: QuantType,
}

/// Rows and columns that there is room for.
type Shape = (usize, usize);

/// The room that activations take in other forms than F32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProductRoom {
    decode: QuantType,
    /// Quantized to that; none when no product takes them.
    quantized: Option<Shape>,
    /// As 8-bit integers for experts; none when no product takes them, or they are in `quantized`.
    of_experts: Option<Shape>,
    /// In half precision or in parts, which are two rows each; none when no product takes them.
    halves: Option<Shape>,
    /// In half precision for groups of warps; none when no product takes them.
    grouped: Option<Shape>,
    /// The same of gated results; none when no product makes them.
    gated_groups: Option<Shape>,
    /// Columns of quantized results of gated products; none when no product makes them.
    gated: Option<usize>,
}

/// The types of the matrices of a step, if it multiplies.
fn types<'a>(step: &'a Step, weights: &'a Weights) -> impl Iterator<Item = BlockType> {
    let ids: Vec<_> = match &step.op {
        Op::Linear { parts, .. } => parts.iter().map(|part| part.weight).collect(),
        Op::ExpertLinear(linear) => linear.parts.iter().map(|part| part.weight).collect(),
        _ => Vec::new(),
    };
    ids.into_iter().map(|id| matrix_type(weights, id))
}

impl ProductRoom {
    pub(super) fn new(
        plan: &Plan,
        fused: &FusedSteps,
        weights: &Weights,
        options: &ExecutableOptions,
        Choices { has_wgmma, decode }: Choices,
    ) -> Self {
        let widths = || plan.steps[1..].iter().map(|step| step.output.width);
        let gated = fused.steps.windows(2).zip(widths()).filter_map(|(fused, width)| {
            matches!(fused, [Fused::Gates { .. }, Fused::Quantizes]).then_some(width)
        });
        let gated_prompts = fused.rounded.iter().zip(widths()).filter_map(|(rounded, width)| {
            matches!(rounded, Rounded::Gates { .. }).then_some(width)
        });
        let is_linear = |step: &Step| matches!(step.op, Op::Linear { .. });
        let widest_of = |is_one: &dyn Fn(&Step) -> bool, is_form: &dyn Fn(Form) -> bool| {
            let takes = |step: &&Step| {
                let forms = [Phase::Decode, Phase::Prefill].map(|phase| {
                    let has_wgmma = has_wgmma && is_linear(step);
                    let form = |ty| linear_form(options.arithmetic, has_wgmma, phase, ty);
                    types(step, weights).any(|ty| is_form(form(ty)))
                });
                is_one(step) && forms.contains(&true)
            };
            let widths = plan.steps.iter().filter(takes).map(|step| step.inputs[0].width);
            widths.max().map(|width| (plan.limits.tokens, width))
        };
        let widest = |is_form: &dyn Fn(Form) -> bool| widest_of(&|_| true, is_form);
        let is_quantized = |form| form == Form::Quantized;
        let (quantized, of_experts) = match decode {
            QuantType::Int8 => (widest(&is_quantized), None),
            QuantType::Bf16 => (
                widest_of(&is_linear, &is_quantized),
                widest_of(&|step| !is_linear(step), &is_quantized),
            ),
        };
        let halves = widest(&|form| matches!(form, Form::Half(_)));
        // A linear's decode rows and its prefill rows take the same room, one after the other.
        let parts = widest(&|form| form == Form::Parts).map(|(rows, width)| (2 * rows, width));
        let both = |a: Shape, b: Shape| (a.0.max(b.0), a.1.max(b.1));
        Self {
            decode,
            quantized,
            of_experts,
            halves: halves.into_iter().chain(parts).reduce(both),
            grouped: widest(&|form| matches!(form, Form::Wgmma(_))),
            gated_groups: gated_prompts.max().map(|width| (plan.limits.tokens, width)),
            gated: gated.max(),
        }
    }

    /// Bytes on the device.
    pub(super) fn n_bytes(&self) -> usize {
        let quantized = |ty| move |(rows, cols)| QuantizedRows::<Driver>::bytes(ty, rows, cols);
        let halves = |(rows, cols)| HalfRows::<Driver>::bytes(rows, cols);
        let gated = self.gated.map_or(0, |cols| GatedRows::<Driver>::bytes(self.decode, cols));
        let grouped = |(rows, cols)| GroupedRows::<Driver>::bytes(rows, cols);
        self.quantized.map_or(0, quantized(self.decode))
            + self.of_experts.map_or(0, quantized(QuantType::Int8))
            + self.halves.map_or(0, halves)
            + self.grouped.map_or(0, grouped)
            + self.gated_groups.map_or(0, grouped)
            + gated
    }
}

/// Activations in other forms than F32.
#[derive(Debug)]
pub(super) struct Products<D: Device> {
    quantized: Option<QuantizedRows<D>>,
    of_experts: Option<QuantizedRows<D>>,
    halves: Option<HalfRows<D>>,
    /// With the kernels that take them.
    grouped: Option<(Arc<WgmmaKernels<D>>, GroupedRows<D>)>,
    gated_groups: Option<GroupedRows<D>>,
    gated: Option<GatedRows<D>>,
}

impl<D: Device> Products<D> {
    pub(super) fn new(
        device: &Arc<D>,
        stream: &D::Stream,
        room: ProductRoom,
        wgmma: Option<&Arc<WgmmaKernels<D>>>,
    ) -> Result<Self, Error> {
        let quantized = |ty, room: Option<Shape>| {
            room.map(|(rows, cols)| QuantizedRows::new(device, ty, rows, cols)).transpose()
        };
        let halves = room.halves.map(|(rows, cols)| HalfRows::new(device, rows, cols));
        let groups = |(rows, cols)| GroupedRows::new(device, rows, cols);
        let grouped =
            wgmma.zip(room.grouped).map(|(wgmma, shape)| Ok((Arc::clone(wgmma), groups(shape)?)));
        let gated = room.gated.map(|cols| GatedRows::new(device, stream, room.decode, cols));
        Ok(Self {
            quantized: quantized(room.decode, room.quantized)?,
            of_experts: quantized(QuantType::Int8, room.of_experts)?,
            halves: halves.transpose()?,
            grouped: grouped.transpose()?,
            gated_groups: room.gated_groups.map(groups).transpose()?,
            gated: gated.transpose()?,
        })
    }

    /// Room for quantized rows, those of a step from `first` on.
    pub(super) fn quantized(&self, first: usize, x: &Rows<'_, D>) -> Quantized<'_, D> {
        let room = self.quantized.as_ref().expect("there is room for quantized activations");
        room.rows(first, x.n_rows(), x.n_cols())
    }

    /// Room for rows of experts as 8-bit integers, those of a step from `first` on.
    pub(super) fn of_experts(&self, first: usize, x: &Rows<'_, D>) -> Quantized<'_, D> {
        match &self.of_experts {
            Some(room) => room.rows(first, x.n_rows(), x.n_cols()),
            None => self.quantized(first, x),
        }
    }

    /// Room for rows in half precision, those of a step from `first` on.
    pub(super) fn halves(&self, ty: HalfType, first: usize, x: &Rows<'_, D>) -> Halves<'_, D> {
        let room = self.halves.as_ref().expect("there is room for halves");
        room.rows(ty, first, x.n_rows(), x.n_cols())
    }

    /// Room for the parts of decode rows, which are the first ones of a step.
    fn parts(&self, x: &Rows<'_, D>) -> Halves<'_, D> {
        let room = self.halves.as_ref().expect("there is room for parts");
        room.rows(HalfType::BF16, 0, 2 * x.n_rows(), x.n_cols())
    }
}

/// A matrix of a linear step, with its bias and where its results are.
struct Part<'a, D: Device> {
    matrix: &'a Matrix<D>,
    bias: Option<Rows<'a, D>>,
    first: usize,
}

impl<'a, D: Device> Launcher<'a, D> {
    /// Whether linear step `idx` makes the decode rows of the gated activation after it, too.
    pub(super) fn gates(&self, idx: usize) -> bool {
        let rows = self.plan.steps[idx].output.rows;
        matches!(self.fused.steps[idx], Fused::Gates { .. })
            && self.of_phase(rows, Phase::Decode).len() <= MAX_GATED_ROWS
    }

    /// The rows of a phase that the steps before linear step `idx` have quantized for it.
    fn quantized_before(
        &self,
        idx: usize,
        phase: Phase,
        x: &Rows<'_, D>,
    ) -> Option<Quantized<'a, D>> {
        let is_quantized =
            phase == Phase::Decode && idx > 0 && self.fused.steps[idx - 1].quantizes();
        let is_gated = idx > 1 && self.gates(idx - 2);
        match &self.products.gated {
            Some(room) if is_quantized && is_gated => Some(room.rows(x.n_rows(), x.n_cols())),
            _ => is_quantized.then(|| self.products.quantized(0, x)),
        }
    }

    /// Room for the prefill rows of linear step `idx`, those of a step from `first` on, which all of its products take in one form of
    /// BF16.
    pub(super) fn rounded_for(
        &self,
        idx: usize,
        first: usize,
        x: &Rows<'_, D>,
    ) -> ProductRows<'a, D> {
        if idx > 0 && self.is_prompt_gated(idx - 1) {
            return ProductRows::Grouped(self.gated_groups(x.n_rows(), x.n_cols()));
        }
        let (matrix, _) = self.weights.linear(idx).next().expect("a linear step has a matrix");
        let wgmma = self.products.grouped.as_ref();
        match (self.prompt_form(matrix.ty()), wgmma) {
            (Form::Wgmma(ty), Some((_, room))) => {
                ProductRows::Grouped(room.rows(ty, x.n_rows(), x.n_cols()))
            }
            (Form::Half(ty), _) => ProductRows::Halves(self.products.halves(ty, first, x)),
            (form, _) => unreachable!("prefill rows in the form {form:?}"),
        }
    }

    /// Queues the rounding of rows for a product.
    pub(super) fn round(&self, x: Rows<'_, D>, to: ProductRows<'_, D>) -> Result<(), Error> {
        let (kernels, stream) = (self.kernels, self.stream());
        match to {
            ProductRows::Quantized(to) => kernels::quantize(kernels, stream, x, to),
            ProductRows::Halves(to) => kernels::round_rows(kernels, stream, x, to),
            ProductRows::Grouped(to) => {
                let (wgmma, _) = self.products.grouped.as_ref().expect("kernels that group");
                kernels::group_rows(kernels, wgmma, stream, x, to)
            }
        }
    }

    /// Whether the product before step `idx` makes its prefill rows.
    pub(super) fn is_prompt_gated(&self, idx: usize) -> bool {
        idx > 0 && matches!(self.fused.rounded[idx - 1], Rounded::Gates { .. })
    }

    /// Room for gated results of prefill rows.
    fn gated_groups(&self, n_rows: usize, n_cols: usize) -> Grouped<'a, D> {
        let room = self.products.gated_groups.as_ref().expect("there is room for gated results");
        room.rows(HalfType::BF16, n_rows, n_cols)
    }

    /// Products of the prefill rows with the matrix of a step, and the gated activation after it, for the product after that.
    pub(super) fn gated_prompt(
        &self,
        (idx, step): (usize, &Step),
        up_first: bool,
    ) -> Result<(), Error> {
        let (kernels, stream, next) = (self.kernels, self.stream(), &self.plan.steps[idx + 1]);
        let rows = self.of_phase(step.output.rows, Phase::Prefill);
        if rows.is_empty() {
            return Ok(());
        }
        let Op::GatedAct(act) = &next.op else { unreachable!("a gated activation") };
        let (wgmma, room) = self.products.grouped.as_ref().expect("there is room for them");
        let x = self.rows(&step.inputs[0], rows);
        let of_x = room.rows(HalfType::BF16, x.n_rows(), x.n_cols());
        if idx == 0 || !self.fused.rounded[idx - 1].is_for_product() {
            kernels::group_rows(kernels, wgmma, stream, x, of_x)?;
        }
        let (matrix, bias) = self.one_matrix(idx);
        let to = self.gated_groups(x.n_rows(), next.output.width);
        let act = *act;
        let gated = GatedGrouped { matrix, up_first, bias, x: of_x, act, to };
        kernels::gated_wgmma(kernels, wgmma, stream, &gated)
    }

    /// The matrix of a linear step that has one, and its bias.
    fn one_matrix(&self, idx: usize) -> (&'a Matrix<D>, Option<Rows<'a, D>>) {
        let mut matrices = self.weights.linear(idx);
        let (Some((matrix, bias)), None) = (matrices.next(), matrices.next()) else {
            unreachable!("gate and what it lets through are one matrix");
        };
        let to_bias = |at| Rows::vector_at(&self.weights.vectors, at as usize, matrix.n_rows());
        (matrix, bias.map(to_bias))
    }

    /// The form of the products of prefill rows with a matrix of a type.
    fn prompt_form(&self, ty: BlockType) -> Form {
        linear_form(self.arithmetic, self.products.grouped.is_some(), Phase::Prefill, ty)
    }

    /// Products of the decode rows with the matrix of a step, and the gated activation after it.
    pub(super) fn gated(&self, (idx, step): (usize, &Step), up_first: bool) -> Result<(), Error> {
        let (kernels, stream, next) = (self.kernels, self.stream(), &self.plan.steps[idx + 1]);
        let rows = self.of_phase(step.output.rows, Phase::Decode);
        if rows.is_empty() {
            return Ok(());
        }
        let Op::GatedAct(act) = &next.op else { unreachable!("a gated activation") };
        let x = self.rows(&step.inputs[0], rows.clone());
        let quantized = match self.quantized_before(idx, Phase::Decode, &x) {
            Some(quantized) => quantized,
            None => {
                let to = self.products.quantized(0, &x);
                kernels::quantize(kernels, stream, x, to)?;
                to
            }
        };
        let (matrix, bias) = self.one_matrix(idx);
        let gated = GatedQuantized {
            matrix,
            up_first,
            bias,
            x: quantized,
            act: *act,
            out: self.rows(&next.output, rows),
            to: self
                .products
                .gated
                .as_ref()
                .filter(|_| self.fused.steps[idx + 1] == Fused::Quantizes),
        };
        kernels::gated_quantized(kernels, stream, &gated)
    }

    /// Products of the rows of a phase with the matrices of a step.
    pub(super) fn linear(
        &self,
        (idx, step): (usize, &Step),
        phase: Phase,
        residual: bool,
    ) -> Result<(), Error> {
        let rows = self.of_phase(step.output.rows, phase);
        if rows.is_empty() {
            return Ok(());
        }
        let (kernels, stream, first_row) = (self.kernels, self.stream(), rows.start);
        let x = self.rows(&step.inputs[0], rows.clone());
        let out = self.rows(&step.output, rows.clone());
        let residual = residual.then(|| self.rows(&step.inputs[1], rows));
        let mut end = 0;
        let mut parts = self.weights.linear(idx).map(|(matrix, bias)| {
            let (first, width) = (end, matrix.n_rows());
            end += width;
            let bias = bias.map(|at| Rows::vector_at(&self.weights.vectors, at as usize, width));
            Part { matrix, bias, first }
        });
        let wgmma = self.products.grouped.as_ref();
        let of = |part: &Part<'_, D>| {
            linear_form(self.arithmetic, wgmma.is_some(), phase, part.matrix.ty())
        };
        let (mut rounded, mut grouped, mut in_parts) = (None, None, None);
        if phase == Phase::Prefill && idx > 0 && self.fused.rounded[idx - 1].is_for_product() {
            match self.rounded_for(idx, first_row, &x) {
                ProductRows::Halves(to) => rounded = Some((to.ty(), to)),
                ProductRows::Grouped(to) => grouped = Some((to.ty(), to)),
                ProductRows::Quantized(_) => unreachable!("prefill rows are not quantized"),
            }
        }
        let mut quantized = self.quantized_before(idx, phase, &x);
        let mut next = parts.next();
        while let Some(part) = next.take() {
            let Part { matrix, bias, first } = part;
            let width = matrix.n_rows();
            let ends =
                |width| (residual.map(|r| r.columns(first, width)), out.columns(first, width));
            match of(&part) {
                Form::F32 => {
                    let (residual, out) = ends(width);
                    let linear = Linear { matrix, x, bias, residual, out };
                    match phase {
                        Phase::Decode => kernels::matvec(kernels, stream, &linear)?,
                        Phase::Prefill => kernels::matmul(kernels, stream, &linear)?,
                    }
                    next = parts.next();
                }
                Form::Parts => {
                    let (residual, out) = ends(width);
                    let linear = Linear { matrix, x, bias, residual, out };
                    if in_parts.is_none() && kernels::is_worth_splitting(x.n_rows()) {
                        let to = self.products.parts(&x);
                        kernels::split_rows(kernels, stream, x, to)?;
                        in_parts = Some(to);
                    }
                    kernels::matvec_parts(kernels, stream, &linear, in_parts)?;
                    next = parts.next();
                }
                Form::Half(ty) => {
                    let to = match rounded.filter(|&(of, _)| of == ty) {
                        Some((_, to)) => to,
                        None => {
                            let to = self.products.halves(ty, first_row, &x);
                            kernels::round_rows(kernels, stream, x, to)?;
                            rounded = Some((ty, to));
                            to
                        }
                    };
                    let (residual, out) = ends(width);
                    let linear = LinearHalf { matrix, x: to, bias, residual, out };
                    kernels::matmul_half(kernels, stream, &linear)?;
                    next = parts.next();
                }
                Form::Wgmma(ty) => {
                    let (wgmma, room) = wgmma.expect("there is room for groups of warps");
                    let to = match grouped.filter(|&(of, _)| of == ty) {
                        Some((_, to)) => to,
                        None => {
                            let to = room.rows(ty, x.n_rows(), x.n_cols());
                            kernels::group_rows(kernels, wgmma, stream, x, to)?;
                            grouped = Some((ty, to));
                            to
                        }
                    };
                    let (residual, out) = ends(width);
                    let linear = LinearGrouped { matrix, x: to, bias, residual, out };
                    kernels::matmul_wgmma(kernels, wgmma, stream, &linear)?;
                    next = parts.next();
                }
                Form::Quantized => {
                    let x = match quantized {
                        Some(to) => to,
                        None => {
                            let to = self.products.quantized(first_row, &x);
                            kernels::quantize(kernels, stream, x, to)?;
                            quantized = Some(to);
                            to
                        }
                    };
                    // Neighbours without biases are one launch.
                    let (mut matrices, mut n, mut width) = ([matrix; MAX_PARTS], 1, width);
                    next = parts.next();
                    while let Some(part) = &next
                        && n < MAX_PARTS
                        && bias.is_none()
                        && part.bias.is_none()
                        && of(part) == Form::Quantized
                    {
                        matrices[n] = part.matrix;
                        width += part.matrix.n_rows();
                        n += 1;
                        next = parts.next();
                    }
                    let (residual, out) = ends(width);
                    let linear =
                        LinearQuantized { matrices: &matrices[..n], x, bias, residual, out };
                    kernels::matvec_quantized(kernels, stream, &linear)?;
                }
            }
        }
        Ok(())
    }
}
