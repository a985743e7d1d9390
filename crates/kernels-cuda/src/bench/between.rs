//! Operations between products: norms and gated activations, which also write the operand of the next product, and
//! token selection.

use super::case::{Case, Form, Op, Phase};
use super::device::{Bench, Target};
use super::products::{first, quant_type, rows};
use super::report::Report;
use crate::{
    Activation, BenchError, Elementwise, Error, Greedy, GroupedRows, HalfRows, HalfType, Norm,
    NormKind, ProductRows, QuantizedRows, Rows, ShareScale, SharesOf, ShortlistLimits,
    ShortlistRow, ShortlistScratch, Shortlists, elementwise, is_worth_splitting, norm,
    quantize_activated, quantize_norm, split_rows,
};

/// Measures cases of one operation.
pub(super) fn run<D: Target>(
    bench: &Bench<D>,
    report: &mut Report<'_>,
    cases: &[&Case],
) -> Result<(), BenchError> {
    report.each(cases, bench.launch_mode(), |report, case| match case.op {
        Op::Norm | Op::Activation => leaves(bench, report, case),
        Op::Greedy => greedy(bench, report, case),
        Op::Shortlist => shortlist(bench, report, case),
        op => unreachable!("{} lies between no products", op.name()),
    })
}

/// Buffers for the operand of the next product.
pub(super) enum Room<D: Target> {
    Quantized(QuantizedRows<D>),
    Halves(HalfRows<D>),
    Grouped(GroupedRows<D>),
    None,
}

impl<D: Target> Room<D> {
    pub(super) fn new(bench: &Bench<D>, case: &Case, n_cols: usize) -> Result<Self, Error> {
        let (device, n) = (&bench.device, case.batch);
        Ok(match case.form {
            Form::Int8 | Form::Bf16 => {
                Self::Quantized(QuantizedRows::new(device, quant_type(case.form), n, n_cols)?)
            }
            Form::Half => Self::Halves(HalfRows::new(device, n, n_cols)?),
            Form::Wgmma => Self::Grouped(GroupedRows::new(device, n, n_cols)?),
            Form::Parts | Form::F32 => Self::None,
        })
    }

    /// The operand that a norm or an activation writes in its own launch, if the form has one.
    pub(super) fn rows(&self, n: usize, n_cols: usize) -> Option<ProductRows<'_, D>> {
        match self {
            Self::Quantized(room) => Some(room.rows(0, n, n_cols).into()),
            Self::Halves(room) => {
                Some(ProductRows::Halves(room.rows(HalfType::BF16, 0, n, n_cols)))
            }
            Self::Grouped(room) => Some(ProductRows::Grouped(room.rows(HalfType::BF16, n, n_cols))),
            Self::None => None,
        }
    }
}

/// Runs a norm or a gated activation that writes the operand of the next product in the form of a case.
fn leaves<D: Target>(
    bench: &Bench<D>,
    report: &mut Report<'_>,
    case: &Case,
) -> Result<(), BenchError> {
    let (kernels, stream, b) = (&*bench.kernels, &bench.stream, case.batch);
    let is_norm = case.op == Op::Norm;
    let n_cols = if is_norm { case.shape.dim } else { case.shape.hidden_dim };
    let [x_at, up_at] = [bench.values(b * n_cols)?, bench.values(b * n_cols)?];
    let (weight_at, out_at) = (bench.values(n_cols)?, bench.results(b * n_cols)?);
    let [x, up, out] = [&x_at, &up_at, &out_at].map(|at| rows(at, b, n_cols));
    let weight = Some(Rows::vector(&weight_at, n_cols));
    let of_rows = Norm { kind: NormKind::Rms, group: n_cols, eps: 1e-5, weight, bias: None };
    let act = Activation::Silu;
    let room = Room::new(bench, case, n_cols)?;
    let is_split = case.form == Form::Parts && is_worth_splitting(b);
    let parts = is_split.then(|| HalfRows::new(&bench.device, 2 * b, n_cols)).transpose()?;
    let launch = |_: usize| {
        if let Some(to) = room.rows(b, n_cols) {
            // Only products read prefill rows.
            let out = (case.phase == Phase::Decode).then_some(out);
            return match is_norm {
                true => quantize_norm(kernels, stream, &of_rows, x, out, to),
                false => quantize_activated(kernels, stream, act, x, Some(up), out, to),
            };
        }
        match is_norm {
            true => norm(kernels, stream, &of_rows, x, out)?,
            false => elementwise(kernels, stream, &Elementwise::Gated(act, up), x, out)?,
        }
        let Some(parts) = &parts else { return Ok(()) };
        split_rows(kernels, stream, out, parts.rows(HalfType::BF16, 0, 2 * b, n_cols))
    };
    let found = || match case.phase {
        Phase::Decode => first(bench, &out_at),
        Phase::Prefill => Ok(Vec::new()),
    };
    bench.measure(report, case, 1, &launch, &found)
}

fn greedy<D: Target>(
    bench: &Bench<D>,
    report: &mut Report<'_>,
    case: &Case,
) -> Result<(), BenchError> {
    let (kernels, stream, b) = (&*bench.kernels, &bench.stream, case.batch);
    let n = case.shape.vocab_size;
    let logits = bench.values(b * n)?;
    let greedy = Greedy::new(&bench.device, stream, b)?;
    let launch = |_: usize| greedy.queue(kernels, stream, rows(&logits, b, n), n, None);
    let found = || {
        let mut chosen = vec![[0; 2]; b];
        greedy.read(stream, &mut chosen)?;
        Ok(chosen.into_iter().map(|[_, logit]| f32::from_bits(logit)).collect())
    };
    bench.measure(report, case, 1, &launch, &found)
}

/// Shortlists as top-p sampling requests them: the best tokens, the shares of all tokens at temperature 1, and a draw.
fn shortlist<D: Target>(
    bench: &Bench<D>,
    report: &mut Report<'_>,
    case: &Case,
) -> Result<(), BenchError> {
    let (kernels, stream, device) = (&*bench.kernels, &bench.stream, &bench.device);
    let (b, n) = (case.batch, case.shape.vocab_size);
    let logits = bench.values(b * n)?;
    let scratch = ShortlistScratch::new(device, stream, n as u32, b)?;
    let limits = ShortlistLimits { rows: b, listed: 0, draws: 1, masks: false };
    let mut lists = Shortlists::new(device, n as u32, limits)?;
    let n_best = Shortlists::<D>::MAX_BEST;
    for row in 0..b as u32 {
        let shares = Some(SharesOf { scale: ShareScale::new(1.0), draws: &[1 << 31] });
        lists.push(&ShortlistRow {
            row,
            n_best,
            n_tokens: n as u32,
            listed: &[],
            mask: None,
            shares,
        });
    }
    lists.upload(stream)?;
    let launch = |_: usize| lists.queue(kernels, stream, rows(&logits, b, n), &scratch, b, true);
    bench.measure(report, case, 1, &launch, &|| Ok(Vec::new()))
}
