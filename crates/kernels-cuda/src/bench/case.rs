//! The plan of the benchmark. A case is an operation of a step at one size, with the bytes that it has to move and the
//! arithmetic that it has to do. The plan lists all cases, the most valuable ones first.

use realizar_quant::BlockType;

use super::routes::mean_used;
use super::shape::{Shape, Sizes};
use crate::device::Driver;
use crate::{
    MAX_GATED_ROWS, Matrix, is_worth_sorting, is_worth_splitting, takes_parts, takes_quantized,
};

/// The phase of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Decode,
    Prefill,
}

/// An operation of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    /// A norm, with the operand of the next product.
    Norm,
    Qkv,
    /// Rotary embedding and key-value store. Decode attention does both itself.
    RopeStore,
    Attention,
    Output,
    /// Includes the gated activation where one launch computes both.
    GateUp,
    /// A separate gated activation, with the operand of the next product.
    Activation,
    Down,
    Head,
    Router,
    Route,
    /// Sorts pairs by expert.
    Sort,
    ExpertGateUp,
    ExpertActivation,
    ExpertDown,
    Combine,
    Greedy,
    Shortlist,
}

impl Op {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Norm => "norm",
            Self::Qkv => "qkv",
            Self::RopeStore => "rope_store",
            Self::Attention => "attention",
            Self::Output => "output",
            Self::GateUp => "gate_up",
            Self::Activation => "activation",
            Self::Down => "down",
            Self::Head => "head",
            Self::Router => "router",
            Self::Route => "route",
            Self::Sort => "sort",
            Self::ExpertGateUp => "expert_gate_up",
            Self::ExpertActivation => "expert_activation",
            Self::ExpertDown => "expert_down",
            Self::Combine => "combine",
            Self::Greedy => "greedy",
            Self::Shortlist => "shortlist",
        }
    }

    /// Whether it is a product with matrices that all rows share.
    pub(super) fn is_product(self) -> bool {
        matches!(
            self,
            Self::Qkv | Self::Output | Self::GateUp | Self::Down | Self::Head | Self::Router
        )
    }

    /// Whether it is a product of rows with their experts' matrices.
    pub(super) fn is_of_experts(self) -> bool {
        matches!(self, Self::ExpertGateUp | Self::ExpertDown)
    }
}

/// The form of a product's activations, which the operation before it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    F32,
    /// 8-bit integers in blocks.
    Int8,
    /// BF16 in blocks (`--cuda-bf16-decode`).
    Bf16,
    /// Two BF16 parts.
    Parts,
    /// Half precision, for `mma.sync`.
    Half,
    /// Half precision in the layout of `wgmma`.
    Wgmma,
}

impl Form {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Int8 => "int8",
            Self::Bf16 => "bf16",
            Self::Parts => "parts",
            Self::Half => "half",
            Self::Wgmma => "wgmma",
        }
    }

    /// Bytes of a row of `n_cols` activations, as a product of `batch` rows reads it.
    fn row_bytes(self, n_cols: usize, batch: usize) -> usize {
        match self {
            // Each block of 32 has an 8-byte head.
            Self::Int8 => n_cols + n_cols / 4,
            Self::Bf16 => 2 * n_cols + n_cols / 4,
            Self::Half | Self::Wgmma => 2 * n_cols,
            Self::Parts if is_worth_splitting(batch) => 4 * n_cols,
            Self::F32 | Self::Parts => 4 * n_cols,
        }
    }
}

/// The bytes that an operation has to move, and its additions and multiplications.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Work {
    pub(super) bytes: f64,
    /// Zero for operations with a negligible amount.
    pub(super) flops: f64,
}

/// An operation at one size.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Case {
    pub(super) shape: Shape,
    pub(super) phase: Phase,
    pub(super) op: Op,
    pub(super) form: Form,
    /// Types of the weights: of Q and K, then of V; otherwise one type, or none.
    pub(super) types: Vec<BlockType>,
    /// Sequences of a decode step, or rows of a prefill step.
    pub(super) batch: usize,
    /// Positions that the last row of each sequence attends to, for attention.
    pub(super) positions: Option<usize>,
}

impl Case {
    /// Whether two cases can share weights.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let key = |case: &Self| (case.shape.name, case.phase, case.op);
        key(self) == key(other) && self.types == other.types
    }

    /// Types and row counts of the matrices. Neighbours of one type are merged.
    pub(super) fn matrices(&self) -> Vec<(BlockType, usize)> {
        let Shape { dim, hidden_dim, vocab_size, .. } = self.shape;
        let (q, kv) = (self.shape.q_cols(), self.shape.kv_cols());
        let experts = self.shape.experts;
        let rows: &[usize] = match (self.op, experts) {
            (Op::Qkv, _) if self.types.len() == 1 => &[q + 2 * kv],
            (Op::Qkv, _) => &[q + kv, kv],
            (Op::Output | Op::Down, _) => &[dim],
            (Op::GateUp, _) => &[2 * hidden_dim],
            (Op::Head, _) => &[vocab_size],
            (Op::Router, Some(of)) => &[of.n_experts],
            (Op::ExpertGateUp, Some(of)) => &[of.n_experts * of.hidden_dim; 2],
            (Op::ExpertDown, Some(of)) => &[of.n_experts * dim],
            _ => &[],
        };
        let types = self.types.iter().cycle();
        types.copied().zip(rows.iter().copied()).collect()
    }

    /// Columns of the matrices.
    pub(super) fn n_cols(&self) -> usize {
        match (self.op, self.shape.experts) {
            (Op::Output, _) => self.shape.q_cols(),
            (Op::Down, _) => self.shape.hidden_dim,
            (Op::ExpertDown, Some(of)) => of.hidden_dim,
            _ => self.shape.dim,
        }
    }

    /// Rows of all matrices together; with experts, of one expert.
    pub(super) fn n_rows(&self) -> usize {
        let rows: usize = self.matrices().iter().map(|m| m.1).sum();
        match self.shape.experts {
            Some(of) if self.op.is_of_experts() => rows / of.n_experts,
            _ => rows,
        }
    }

    /// Bytes of the matrices on a device, including those of all experts.
    pub(super) fn weight_bytes(&self) -> usize {
        let n_cols = self.n_cols();
        self.matrices().iter().map(|&(ty, n)| Matrix::<Driver>::bytes(ty, n, n_cols)).sum()
    }

    /// Whether the product includes the gated activation.
    pub(super) fn is_gated(&self) -> bool {
        let few = matches!(self.form, Form::Int8 | Form::Bf16) && self.batch <= MAX_GATED_ROWS;
        // F16 results would need a scale for each row.
        let grouped = self.form == Form::Wgmma && !self.types.contains(&BlockType::F16);
        self.op == Op::GateUp && (few || grouped)
    }

    /// Whether a step of this size launches the operation. With few decode rows the gate and up product includes the
    /// activation, and few pairs are not sorted.
    fn is_launched(&self) -> bool {
        match (self.op, self.phase, self.shape.experts) {
            (Op::Activation, ..) => !Self { op: Op::GateUp, ..self.clone() }.is_gated(),
            (Op::Sort, Phase::Decode, Some(of)) => {
                is_worth_sorting(self.batch * of.n_experts_used, of.n_experts)
            }
            _ => true,
        }
    }

    /// The bytes and arithmetic of the operation, assuming perfect caches within a launch.
    pub(super) fn work(&self) -> Work {
        let Shape { dim, hidden_dim, vocab_size, head_dim, .. } = self.shape;
        let (b, q, kv) = (self.batch, self.shape.q_cols(), self.shape.kv_cols());
        let moved = |bytes: usize| Work { bytes: bytes as f64, flops: 0.0 };
        // The operand of the next product, and the F32 values where other operations read them.
        let left = |n_cols: usize| match self.form {
            Form::Half | Form::Wgmma => self.form.row_bytes(n_cols, b),
            Form::Int8 | Form::Bf16 => 4 * n_cols + self.form.row_bytes(n_cols, b),
            // Rows are split by a separate launch.
            Form::Parts if is_worth_splitting(b) => 12 * n_cols,
            Form::Parts | Form::F32 => 4 * n_cols,
        };
        match self.op {
            op if op.is_product() => self.product(),
            op if op.is_of_experts() => self.expert_product(),
            Op::Norm => moved(4 * dim + b * (4 * dim + left(dim))),
            Op::Activation => moved(b * (8 * hidden_dim + left(hidden_dim))),
            // Reads heads and angles; writes queries in F32, and keys and values in F16.
            Op::RopeStore => moved(b * (4 * (q + 2 * kv) + 4 * head_dim + 4 * q + 4 * kv)),
            Op::Attention => self.attention(),
            Op::Greedy => moved(4 * b * vocab_size),
            // Both launches read the logits.
            Op::Shortlist => moved(8 * b * vocab_size),
            _ => {
                let of = self.shape.experts.expect("an operation of experts");
                moved(match self.op {
                    Op::Route => b * (4 * of.n_experts + 8 * of.n_experts_used),
                    Op::Sort => b * of.n_experts_used * 8,
                    Op::ExpertActivation => {
                        let n = of.n_experts_used * of.hidden_dim;
                        let product = match self.form {
                            Form::F32 => 0,
                            form => 4 * n + form.row_bytes(n, b),
                        };
                        b * (12 * n + product)
                    }
                    _ => b * (4 * of.n_experts_used * dim + 8 * of.n_experts_used + 4 * dim),
                })
            }
        }
    }

    fn product(&self) -> Work {
        let (b, n_rows, n_cols) = (self.batch, self.n_rows(), self.n_cols());
        let results = match self.form {
            Form::Wgmma if self.is_gated() => 2 * (n_rows / 2),
            form if self.is_gated() => 4 * (n_rows / 2) + form.row_bytes(n_rows / 2, b),
            _ => 4 * n_rows,
        };
        let residual = if matches!(self.op, Op::Output | Op::Down) { 4 * n_rows } else { 0 };
        let of_row = self.form.row_bytes(n_cols, b) + results + residual;
        Work {
            bytes: (self.weight_bytes() + b * of_row) as f64,
            flops: 2.0 * (b * n_rows) as f64 * n_cols as f64,
        }
    }

    fn expert_product(&self) -> Work {
        let of = self.shape.experts.expect("an operation of experts");
        let (b, n_rows, n_cols) = (self.batch, self.n_rows(), self.n_cols());
        // The experts of a row share its values before the gate, and have separate ones after it.
        let x_cols = if self.op == Op::ExpertDown { of.n_experts_used * n_cols } else { n_cols };
        let of_row = self.form.row_bytes(x_cols, b) + 4 * of.n_experts_used * n_rows;
        let used = mean_used(&of, b) / of.n_experts as f64;
        Work {
            bytes: self.weight_bytes() as f64 * used + (b * of_row) as f64,
            flops: 2.0 * (b * of.n_experts_used * n_rows) as f64 * n_cols as f64,
        }
    }

    fn attention(&self) -> Work {
        let (b, q, kv) = (self.batch, self.shape.q_cols(), self.shape.kv_cols());
        let positions = self.positions.expect("positions of attention");
        // Keys and values in F16.
        let (pairs, stored, of_row) = match self.phase {
            Phase::Decode => {
                let results = 4 * q + self.form.row_bytes(q, b);
                (b * positions, b * positions * 4 * kv, 4 * (q + 2 * kv) + results)
            }
            Phase::Prefill => {
                let pairs = b * positions - b * (b - 1) / 2;
                (pairs, positions * 4 * kv, 4 * q + self.form.row_bytes(q, b))
            }
        };
        Work { bytes: (stored + b * of_row) as f64, flops: 4.0 * pairs as f64 * q as f64 }
    }
}

/// All cases of an operation: every batch in every form.
fn cases(
    sizes: &Sizes,
    shape: Shape,
    phase: Phase,
    op: Op,
    forms: &[Form],
    types: &[BlockType],
) -> Vec<Case> {
    let batches = match phase {
        Phase::Decode => &sizes.batches,
        Phase::Prefill => &sizes.prefill,
    };
    let of = |batch: usize, form: Form| {
        let case = Case { shape, phase, op, form, types: types.to_vec(), batch, positions: None };
        let positions: Vec<Option<usize>> = match (op, phase) {
            (Op::Attention, Phase::Decode) => sizes.positions.iter().copied().map(Some).collect(),
            (Op::Attention, Phase::Prefill) => {
                let behind = sizes.positions.iter().copied().filter(|&n| n > batch);
                std::iter::once(batch).chain(behind).map(Some).collect()
            }
            _ => vec![None],
        };
        positions.into_iter().map(move |positions| Case { positions, ..case.clone() })
    };
    let all = batches.iter().flat_map(|&batch| forms.iter().flat_map(move |&form| of(batch, form)));
    all.filter(|case| case.is_launched()).collect()
}

/// The forms in which a phase can multiply weights of a type.
fn forms(phase: Phase, ty: BlockType) -> &'static [Form] {
    let has_wgmma = crate::WgmmaKernels::<Driver>::takes(ty);
    match phase {
        Phase::Decode if takes_quantized(ty) => &[Form::Int8, Form::Bf16],
        Phase::Decode if takes_parts(ty) => &[Form::Parts],
        Phase::Prefill if has_wgmma => &[Form::Wgmma, Form::Half],
        Phase::Prefill if ty != BlockType::F32 => &[Form::Half],
        _ => &[Form::F32],
    }
}

/// The forms in which a phase can multiply experts of a type.
fn expert_forms(phase: Phase, ty: BlockType) -> &'static [Form] {
    match phase {
        Phase::Decode if takes_quantized(ty) => &[Form::Int8],
        Phase::Prefill if ty != BlockType::F32 => &[Form::Half],
        _ => &[Form::F32],
    }
}

/// The weight types of Q4_K_M files.
const MIXED: [BlockType; 2] = [BlockType::Q4_K, BlockType::Q6_K];

/// All cases, the most valuable first: products of Q4_K_M and BF16, attention, prefill, operations between products,
/// then other types and the MoE model. With `only_types`, only products with weights of these types.
pub(super) fn plan(sizes: &Sizes, only_types: &[BlockType]) -> Vec<Case> {
    use BlockType::{BF16, F32, Q4_K, Q6_K, Q8_0};
    use Phase::{Decode, Prefill};
    let (dense, moe) = (sizes.dense, sizes.experts);
    let mut all = Vec::new();
    let mut add = |shape, phase: Phase, op: Op, types: &[BlockType]| {
        let forms = match types {
            [ty, ..] if op.is_of_experts() => expert_forms(phase, *ty),
            [ty, ..] => forms(phase, *ty),
            [] => match (op, phase) {
                (Op::Norm | Op::Activation, Decode) => &[Form::Int8, Form::Bf16, Form::Parts][..],
                (Op::Norm | Op::Attention, Prefill) => &[Form::Wgmma, Form::Half],
                (Op::Activation | Op::ExpertActivation, Prefill) => &[Form::Half],
                (Op::Attention, Decode) => &[Form::Int8],
                (Op::ExpertActivation, Decode) => &[Form::Int8, Form::F32],
                _ => &[Form::F32],
            },
        };
        all.extend(cases(sizes, shape, phase, op, forms, types));
    };
    if !only_types.is_empty() {
        for ty in only_types {
            for phase in [Decode, Prefill] {
                for op in [Op::GateUp, Op::Down, Op::Qkv, Op::Output, Op::Head] {
                    add(dense, phase, op, &[*ty]);
                }
                for op in [Op::ExpertGateUp, Op::ExpertDown] {
                    add(moe, phase, op, &[*ty]);
                }
            }
        }
        return all;
    }
    for (op, types) in [
        (Op::GateUp, &[Q4_K][..]),
        (Op::Down, &[Q4_K]),
        (Op::Down, &[Q6_K]),
        (Op::Qkv, &[Q4_K]),
        (Op::Qkv, &MIXED),
        (Op::Output, &[Q4_K]),
        (Op::Head, &[Q6_K]),
        (Op::GateUp, &[BF16]),
        (Op::Down, &[BF16]),
        (Op::Qkv, &[BF16]),
        (Op::Output, &[BF16]),
        (Op::Head, &[BF16]),
        (Op::Attention, &[]),
    ] {
        add(dense, Decode, op, types);
    }
    for (op, types) in [
        (Op::GateUp, &[Q4_K][..]),
        (Op::Down, &[Q4_K]),
        (Op::Down, &[Q6_K]),
        (Op::Qkv, &[Q4_K]),
        (Op::Qkv, &MIXED),
        (Op::Output, &[Q4_K]),
        (Op::Attention, &[]),
        (Op::GateUp, &[BF16]),
        (Op::Down, &[BF16]),
        (Op::Qkv, &[BF16]),
        (Op::Output, &[BF16]),
    ] {
        add(dense, Prefill, op, types);
    }
    for op in [Op::Norm, Op::Activation, Op::Greedy, Op::Shortlist] {
        add(dense, Decode, op, &[]);
    }
    for op in [Op::Norm, Op::Activation, Op::RopeStore] {
        add(dense, Prefill, op, &[]);
    }
    let products = [
        (Op::ExpertGateUp, &[Q4_K][..]),
        (Op::ExpertDown, &[Q4_K]),
        (Op::ExpertDown, &[Q6_K]),
        (Op::Attention, &[]),
        (Op::Qkv, &[Q4_K]),
        (Op::Qkv, &MIXED),
        (Op::Output, &[Q4_K]),
    ];
    let routing = [
        (Op::Router, &[F32][..]),
        (Op::Route, &[]),
        (Op::Sort, &[]),
        (Op::ExpertActivation, &[]),
        (Op::Combine, &[]),
    ];
    let (head, norm) = ((Op::Head, &[Q6_K][..]), (Op::Norm, &[][..]));
    for (op, types) in products.into_iter().chain([head]).chain(routing).chain([norm]) {
        add(moe, Decode, op, types);
    }
    for op in [Op::GateUp, Op::Down, Op::Qkv, Op::Output, Op::Head] {
        add(dense, Decode, op, &[Q8_0]);
    }
    for op in [Op::GateUp, Op::Down, Op::Qkv, Op::Output] {
        add(dense, Prefill, op, &[Q8_0]);
    }
    add(dense, Decode, Op::Head, &[Q4_K]);
    let store = (Op::RopeStore, &[][..]);
    for (op, types) in products.into_iter().chain(routing).chain([store, norm]) {
        add(moe, Prefill, op, types);
    }
    for ty in [Q8_0, BF16] {
        for phase in [Decode, Prefill] {
            for op in [Op::ExpertGateUp, Op::ExpertDown, Op::Qkv, Op::Output] {
                add(moe, phase, op, &[ty]);
            }
        }
        add(moe, Decode, Op::Head, &[ty]);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::shape::{DENSE, EXPERTS};
    use super::*;
    use BlockType::{BF16, Q4_K, Q6_K, Q8_0};
    use Form::{Bf16, F32, Half, Int8, Parts, Wgmma};
    use Op::{
        Activation, Attention, Down, ExpertGateUp, GateUp, Greedy, Norm, Output, Qkv, RopeStore,
    };
    use Phase::{Decode, Prefill};

    fn case(shape: Shape, phase: Phase, op: Op, form: Form, types: &[BlockType]) -> Case {
        Case { shape, phase, op, form, types: types.to_vec(), batch: 1, positions: None }
    }

    #[test]
    fn work_is_that_of_the_shapes() {
        let dense = |phase, op, form, types: &[BlockType], batch| Case {
            batch,
            ..case(DENSE, phase, op, form, types)
        };
        let at = |positions, case| Case { positions: Some(positions), ..case };
        let cases: [(Case, u64, u64); 18] = [
            // 28672 rows of 4096 weights, 16 blocks of 144 bytes each. The input is a row of 4096 bytes and 128 heads
            // of 8; the output is 14336 values, in F32 and quantized.
            (
                dense(Decode, GateUp, Int8, &[Q4_K], 1),
                66_060_288 + 5120 + 57_344 + 17_920,
                234_881_024,
            ),
            // Larger batches have no gate in the epilogue.
            (
                dense(Decode, GateUp, Int8, &[Q4_K], 32),
                66_060_288 + 32 * (5120 + 114_688),
                32 * 234_881_024,
            ),
            // Blocks of 210 bytes, packed per 256 columns as 128, 64 and 18 bytes; the residual is read.
            (
                dense(Decode, Down, Int8, &[Q6_K], 1),
                4096 * 56 * 210 + 17_920 + 2 * 16_384,
                2 * 4096 * 14_336,
            ),
            (
                dense(Decode, Down, Bf16, &[Q4_K], 1),
                4096 * 56 * 144 + 32_256 + 2 * 16_384,
                2 * 4096 * 14_336,
            ),
            // 5120 rows of Q4_K and 1024 of Q6_K.
            (
                dense(Decode, Qkv, Int8, &[Q4_K, Q6_K], 1),
                5120 * 2304 + 1024 * 3360 + 5120 + 24_576,
                2 * 6144 * 4096,
            ),
            // Few activations are split inside the product, more before it: two parts of 2 bytes.
            (
                dense(Decode, Output, Parts, &[BF16], 8),
                2 * 4096 * 4096 + 8 * 3 * 16_384,
                8 * 2 * 4096 * 4096,
            ),
            (
                dense(Prefill, Output, Half, &[Q8_0], 512),
                4096 * 128 * 34 + 512 * (8192 + 2 * 16_384),
                512 * 2 * 4096 * 4096,
            ),
            (
                dense(Prefill, GateUp, Wgmma, &[BF16], 512),
                2 * 28_672 * 4096 + 512 * (8192 + 28_672),
                512 * 234_881_024,
            ),
            // 256 positions of 1024 keys and values in F16; heads are read, results are written twice.
            (
                at(256, dense(Decode, Attention, Int8, &[], 8)),
                8 * (256 * 4096 + 4 * 6144 + 16_384 + 5120),
                8 * 4 * 256 * 4096,
            ),
            // Rows attend to 1 to 512 positions: 131328 pairs.
            (
                at(512, dense(Prefill, Attention, Half, &[], 512)),
                512 * (4096 + 16_384 + 8192),
                4 * 131_328 * 4096,
            ),
            // The last 512 of 4096 positions: 512 * 3584 pairs with earlier positions, and 131328.
            (
                at(4096, dense(Prefill, Attention, Wgmma, &[], 512)),
                4096 * 4096 + 512 * (16_384 + 8192),
                4 * 1_966_336 * 4096,
            ),
            (dense(Decode, Norm, Int8, &[], 8), 16_384 + 8 * (16_384 + 16_384 + 5120), 0),
            (dense(Prefill, Norm, Wgmma, &[], 512), 16_384 + 512 * (16_384 + 8192), 0),
            (dense(Decode, Activation, Int8, &[], 32), 32 * (3 * 57_344 + 17_920), 0),
            // A separate launch splits the rows: it reads them again and writes the parts.
            (dense(Decode, Norm, Parts, &[], 32), 16_384 + 32 * 4 * 16_384, 0),
            (dense(Prefill, RopeStore, F32, &[], 512), 512 * (24_576 + 512 + 16_384 + 4096), 0),
            (dense(Decode, Greedy, F32, &[], 8), 8 * 513_024, 0),
            // The eight experts of a row: two matrices of 768 rows of 1152 bytes each.
            (
                case(EXPERTS, Decode, ExpertGateUp, Int8, &[Q4_K]),
                8 * 1536 * 1152 + 2560 + 8 * 1536 * 4,
                8 * 2 * 1536 * 2048,
            ),
        ];
        for (case, bytes, flops) in cases {
            let expected = Work { bytes: bytes as f64, flops: flops as f64 };
            assert_eq!(case.work(), expected, "{case:?}");
        }
    }

    #[test]
    fn the_plan_names_each_case_once_and_the_valuable_ones_first() {
        let plan = plan(&Sizes::real(), &[]);
        let first = &plan[0];
        assert_eq!((first.op, first.batch, &first.types[..]), (GateUp, 1, &[Q4_K][..]));
        for (i, case) in plan.iter().enumerate() {
            assert!(!plan[..i].contains(case), "{case:?} twice");
        }
        // The memory that an 80 GB GPU must hold at once: weights, and keys and values of the longest contexts.
        let rotated = Sizes::real().rotated_bytes;
        for case in &plan {
            let held = case.weight_bytes().max(case.work().bytes as usize) + rotated;
            assert!(held < 40_000_000_000, "{case:?}: {held} bytes");
        }
    }

    #[test]
    fn other_types_have_their_products() {
        let sizes = Sizes::real();
        let plan = plan(&sizes, &[BlockType::Q5_K]);
        let of = |op: Op, phase: Phase| {
            plan.iter().filter(|case| (case.op, case.phase) == (op, phase)).count()
        };
        assert_eq!([of(GateUp, Decode), of(Down, Prefill), of(ExpertGateUp, Decode)], [8, 2, 4]);
        assert!(plan.iter().all(|case| case.types == [BlockType::Q5_K]));
    }
}
