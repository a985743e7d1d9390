//! Products of decode and prefill rows with the matrices that all rows share.

use super::case::{Case, Form, Op, Phase};
use super::device::{Bench, Target};
use super::report::Report;
use crate::{
    Activation, BenchError, GatedGrouped, GatedQuantized, GatedRows, GroupedRows, HalfRows,
    HalfType, Linear, LinearGrouped, LinearHalf, LinearQuantized, Matrix, QuantType, QuantizedRows,
    Rows, gated_quantized, gated_wgmma, group_rows, half_type, is_worth_splitting, matmul,
    matmul_half, matmul_wgmma, matvec, matvec_parts, matvec_quantized, quantize, round_rows,
    split_rows,
};
use crate::{Buffer, Error};

/// Number of results that are read and checked.
const CHECKED: usize = 1024;

/// The first results of a buffer.
pub(super) fn first<D: Target>(bench: &Bench<D>, out: &Buffer<D>) -> Result<Vec<f32>, Error> {
    let mut values = vec![0.0; CHECKED.min(out.n_bytes() / 4)];
    out.read(&bench.stream, 0, &mut values)?;
    Ok(values)
}

/// A buffer as contiguous rows.
pub(super) fn rows<D: Target>(buffer: &Buffer<D>, n_rows: usize, n_cols: usize) -> Rows<'_, D> {
    Rows::new(buffer, 0, n_rows, n_cols, n_cols)
}

/// The quantization of decode rows in a form.
pub(super) fn quant_type(form: Form) -> QuantType {
    match form {
        Form::Bf16 => QuantType::Bf16,
        _ => QuantType::Int8,
    }
}

/// Measures cases of one operation that share weights.
pub(super) fn run<D: Target>(
    bench: &Bench<D>,
    report: &mut Report<'_>,
    cases: &[&Case],
) -> Result<(), BenchError> {
    let copies = bench.copies(cases[0])?;
    report.each(cases, bench.launch_mode(), |report, case| product(bench, report, case, &copies))
}

fn product<D: Target>(
    bench: &Bench<D>,
    report: &mut Report<'_>,
    case: &Case,
    copies: &[Vec<Matrix<D>>],
) -> Result<(), BenchError> {
    let (kernels, stream, device) = (&*bench.kernels, &bench.stream, &bench.device);
    let (b, n_rows, n_cols) = (case.batch, case.n_rows(), case.n_cols());
    let out_cols = if case.is_gated() { n_rows / 2 } else { n_rows };
    let (x_at, out_at) = (bench.values(b * n_cols)?, bench.results(b * out_cols)?);
    let (x, out) = (rows(&x_at, b, n_cols), rows(&out_at, b, out_cols));
    let has_residual = matches!(case.op, Op::Output | Op::Down);
    let residual_at = has_residual.then(|| bench.values(b * n_rows)).transpose()?;
    let residual = residual_at.as_ref().map(|at| rows(at, b, n_rows));
    let found = || first(bench, &out_at);
    // Each matrix with its first column of results.
    let parts = |turn: usize| {
        copies[turn].iter().scan(0, |end, matrix| {
            let at = *end;
            *end += matrix.n_rows();
            Some((matrix, at))
        })
    };
    let mut measure = |launch: &dyn Fn(usize) -> Result<(), Error>,
                       found: &dyn Fn() -> Result<Vec<f32>, Error>| {
        bench.measure(report, case, copies.len(), launch, found)
    };
    match case.form {
        Form::Int8 | Form::Bf16 => {
            let ty = quant_type(case.form);
            let room = QuantizedRows::new(device, ty, b, n_cols)?;
            let x_to = room.rows(0, b, n_cols);
            quantize(kernels, stream, x, x_to)?;
            if case.is_gated() {
                let to = GatedRows::new(device, stream, ty, out_cols)?;
                let launch = |turn: usize| {
                    let gated = GatedQuantized {
                        matrix: &copies[turn][0],
                        up_first: false,
                        bias: None,
                        x: x_to,
                        act: Activation::Silu,
                        out,
                        to: Some(&to),
                    };
                    gated_quantized(kernels, stream, &gated)
                };
                return measure(&launch, &found);
            }
            let launch = |turn: usize| {
                let matrices: Vec<&Matrix<D>> = copies[turn].iter().collect();
                let matrices = &matrices[..];
                let linear = LinearQuantized { matrices, x: x_to, bias: None, residual, out };
                matvec_quantized(kernels, stream, &linear)
            };
            measure(&launch, &found)
        }
        Form::Parts => {
            let room = HalfRows::new(device, 2 * b, n_cols)?;
            let split = is_worth_splitting(b);
            let split = split.then(|| room.rows(HalfType::BF16, 0, 2 * b, n_cols));
            if let Some(to) = split {
                split_rows(kernels, stream, x, to)?;
            }
            let launch = |turn: usize| {
                parts(turn).try_for_each(|(matrix, at)| {
                    let out = out.columns(at, matrix.n_rows());
                    let residual = residual.map(|rows| rows.columns(at, matrix.n_rows()));
                    let linear = Linear { matrix, x, bias: None, residual, out };
                    matvec_parts(kernels, stream, &linear, split)
                })
            };
            measure(&launch, &found)
        }
        Form::F32 => {
            let launch = |turn: usize| {
                parts(turn).try_for_each(|(matrix, at)| {
                    let out = out.columns(at, matrix.n_rows());
                    let residual = residual.map(|rows| rows.columns(at, matrix.n_rows()));
                    let linear = Linear { matrix, x, bias: None, residual, out };
                    match case.phase {
                        Phase::Decode => matvec(kernels, stream, &linear),
                        Phase::Prefill => matmul(kernels, stream, &linear),
                    }
                })
            };
            measure(&launch, &found)
        }
        Form::Half => {
            let half = half_type(copies[0][0].ty()).expect("weights other than F32");
            let room = HalfRows::new(device, b, n_cols)?;
            let x = room.rows(half, 0, b, n_cols);
            round_rows(kernels, stream, rows(&x_at, b, n_cols), x)?;
            let launch = |turn: usize| {
                parts(turn).try_for_each(|(matrix, at)| {
                    let out = out.columns(at, matrix.n_rows());
                    let residual = residual.map(|rows| rows.columns(at, matrix.n_rows()));
                    let linear = LinearHalf { matrix, x, bias: None, residual, out };
                    matmul_half(kernels, stream, &linear)
                })
            };
            measure(&launch, &found)
        }
        Form::Wgmma => {
            let wgmma = bench.wgmma();
            let half = half_type(copies[0][0].ty()).expect("weights other than F32");
            let room = GroupedRows::new(device, b, n_cols)?;
            let x = room.rows(half, b, n_cols);
            group_rows(kernels, wgmma, stream, rows(&x_at, b, n_cols), x)?;
            if case.is_gated() {
                let room = GroupedRows::new(device, b, out_cols)?;
                let to = room.rows(HalfType::BF16, b, out_cols);
                let launch = |turn: usize| {
                    let (matrix, act) = (&copies[turn][0], Activation::Silu);
                    let gated = GatedGrouped { matrix, up_first: false, bias: None, x, act, to };
                    gated_wgmma(kernels, wgmma, stream, &gated)
                };
                let found = || {
                    let stages = to.read(stream);
                    let first = stages.first().map_or(&[][..], |stage| &stage[..]);
                    let wide = |bits: &u16| f32::from_bits(u32::from(*bits) << 16);
                    Ok(first.iter().map(wide).collect())
                };
                return measure(&launch, &found);
            }
            let launch = |turn: usize| {
                parts(turn).try_for_each(|(matrix, at)| {
                    let out = out.columns(at, matrix.n_rows());
                    let residual = residual.map(|rows| rows.columns(at, matrix.n_rows()));
                    let linear = LinearGrouped { matrix, x, bias: None, residual, out };
                    matmul_wgmma(kernels, wgmma, stream, &linear)
                })
            };
            measure(&launch, &found)
        }
    }
}
